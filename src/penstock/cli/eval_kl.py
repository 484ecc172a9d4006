"""Compare a model's predictions of a text with those of a base, mostly the same model unrounded.

Both run at once, so both must fit in memory. Divergences (Kullback and Leibler) are in nats a
token. The base is the same checkpoint without --quantization, unless --base or --base-quantization
says otherwise, and has the same KV cache without --base-kv-cache-dtype; all other options hold for
both.
"""

from __future__ import annotations

import argparse

from penstock.cli.bench_common import print_table
from penstock.cli.eval_base import add_base_arguments, base_config
from penstock.cli.eval_common import (
    UNUSED,
    add_window_arguments,
    show_progress,
    text_of,
    windows_of,
    write_evaluation,
)
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config
from penstock.errors import ConfigError

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=UNUSED)
    add_window_arguments(parser)
    add_base_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.evaluate.comparison import compare
    from penstock.evaluate.text_model import TextModel

    config, text = engine_config(args), text_of(args)
    compared = base_config(config, args)
    with (
        TextModel.open(config, args.window) as model,
        TextModel.open(compared, args.window) as base,
    ):
        windows = windows_of(args, text, model)
        if base.encode(text) != model.encode(text):
            raise ConfigError(
                "the base's tokenizer cuts the text into other tokens than the model's: "
                "divergences are of models that share one"
            )
        result = compare(
            model,
            base,
            windows,
            lambda done, value: show_progress(done, len(windows), f"divergence {value:.5f}"),
        )
    print_table(
        [
            (
                "divergence",
                f"mean {result.kl_mean:.5f}  p50 {result.kl_median:.5f}  p99 {result.kl_p99:.5f}  "
                f"max {result.kl_max:.5f} nats",
            ),
            ("same top token", f"{result.agreement:.2%}"),
            (
                "perplexity",
                f"{result.model_perplexity.perplexity:.4f}, of the base "
                f"{result.base_perplexity.perplexity:.4f} ({result.perplexity_ratio - 1:+.2%})",
            ),
            (
                "tokens",
                f"{result.model_perplexity.tokens:,} in {len(windows):,} windows of {args.window}",
            ),
        ]
    )
    if args.json is not None:
        models = {"model": model.engine_plan.config, "base": base.engine_plan.config}
        write_evaluation(args.json, "kl", args, result, windows, **models)
    return 0
