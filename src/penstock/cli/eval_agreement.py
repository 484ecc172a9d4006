"""Count for how long a model writes what a base writes, mostly the same model unrounded.

Both continue the same pieces of a text, always with the likeliest token, and tokens are counted up
to the first that differs. The models run one after the other. The base is the same checkpoint
without --quantization, unless --base or --base-quantization says otherwise; all other options hold
for both.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.bench_common import print_table
from penstock.cli.eval_base import add_base_arguments, base_config
from penstock.cli.eval_common import add_text_arguments, text_of, write_evaluation
from penstock.cli.options import (
    ADAPTERS,
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    positive_int,
)
from penstock.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.resolved_config import ResolvedConfig

_UNUSED: Final = frozenset(
    {
        "generation_config",
        "max_input_len",
        "max_model_len",
        "max_output_len",
        "served_model_name",
        *ADAPTERS,
    }
)


RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=_UNUSED)
    group = add_text_arguments(parser)
    for name, default, said in (
        ("prompts", 100, "pieces of the text that are continued, evenly apart"),
        ("prompt-tokens", 64, "tokens in each of them"),
        ("tokens", 64, "tokens in each continuation"),
    ):
        words = f"{said} (default: {default})"
        group.add_argument(f"--{name}", type=positive_int, default=default, metavar="N", help=words)
    add_base_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.evaluate.agreement import Agreement

    config, text = engine_config(args), text_of(args)
    base, prompts, theirs = _continued(base_config(config, args), text, args)
    model, own_prompts, ours = _continued(config, text, args)
    if prompts != own_prompts:
        raise ConfigError(
            "the base's tokenizer cuts the text into other tokens than the model's: continuations "
            "are compared of models that share one"
        )
    result = Agreement.of(args.prompt_tokens, ours, theirs)
    print_table(
        [
            ("identical", f"{result.identical:.2%} of {result.prompts:,} continuations"),
            (
                "same tokens",
                f"mean {result.same_mean:.1f}  p50 {result.same_median:.0f}  "
                f"p10 {result.same_p10:.0f} of {result.tokens}",
            ),
        ]
    )
    if args.json is not None:
        write_evaluation(args.json, "agreement", args, result, None, model=model, base=base)
    return 0


def _continued(
    config: EngineConfig, text: str, args: argparse.Namespace
) -> tuple[ResolvedConfig, list[list[int]], list[list[int]]]:
    """Run a model; return its options, the prompts in its tokens, and what it makes of each."""
    from penstock.api import LLM
    from penstock.evaluate.agreement import cut_prompts
    from penstock.evaluate.text_model import bos_before
    from penstock.sampling.params import SamplingParams

    options = msgspec.structs.asdict(config)
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    with LLM(options.pop("model"), require_tokenizer=True, **options) as llm:
        tokens = llm.tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        bos = bos_before(llm.tokenizer)
        prompts = cut_prompts(tokens, args.prompt_tokens, args.prompts, bos)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    failed = next((output.error for output in outputs if output.error is not None), None)
    if failed is not None:
        raise ModelError(failed)
    return llm.config, prompts, [list(output.outputs[0].token_ids) for output in outputs]
