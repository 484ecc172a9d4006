"""Measure how well a model predicts a text.

The text is cut into windows, which the model reads one by one. Perplexities compare only between
models that share a tokenizer, with the same --window and --windows; bits per byte compare always.
"""

from __future__ import annotations

import argparse

from penstock.cli.bench_common import print_table
from penstock.cli.eval_common import (
    UNUSED,
    add_window_arguments,
    show_progress,
    text_of,
    windows_of,
    write_evaluation,
)
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=UNUSED)
    add_window_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.evaluate.perplexity import perplexity
    from penstock.evaluate.text_model import TextModel

    text = text_of(args)
    with TextModel.open(engine_config(args), args.window) as model:
        windows = windows_of(args, text, model)
        result = perplexity(
            model,
            windows,
            lambda done, value: show_progress(done, len(windows), f"perplexity {value:.4f}"),
        )
    print_table(
        [
            ("perplexity", f"{result.perplexity:.4f} +/- {result.standard_error:.4f}"),
            ("bits per byte", f"{result.bits_per_byte:.4f}"),
            ("tokens", f"{result.tokens:,} in {result.windows:,} windows of {args.window}"),
        ]
    )
    if args.json is not None:
        write_evaluation(
            args.json, "perplexity", args, result, windows, model=model.engine_plan.config
        )
    return 0
