"""Complete prompts, with the model that ships with Penstock or any other.

  penstock generate -p "def fibonacci(n):"
  penstock generate path/to/checkpoint --chat -p "Why is the sky blue?" --temperature 0
  penstock generate -f prompts.jsonl --json > answers.jsonl
  echo "The capital of France is" | penstock generate path/to/checkpoint
  penstock generate -p "A person as JSON: " --json-schema person.json

One prompt is answered as its tokens come. Several run together, and each is written when it is
finished: with --json at once, otherwise in order. Ctrl-C keeps what is finished.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.cli.batch import OUTPUT_FIELDS, Batch, JsonWriter, LiveWriter, TextWriter, Writer
from penstock.cli.beam_options import RARE as RARE_BEAMS
from penstock.cli.beam_options import add_beam_arguments, with_beams
from penstock.cli.grammar_options import GRAMMAR, add_grammar_arguments, grammar_of, naming_option
from penstock.cli.main import EXIT_FAILED, EXIT_INTERRUPTED
from penstock.cli.options import (
    ADAPTERS,
    RARE_ENGINE,
    RARE_SAMPLING,
    add_engine_arguments,
    add_sampling_arguments,
    checked,
    engine_config,
    sampling_params,
)
from penstock.cli.parser import UsageError
from penstock.cli.prompts import BadLine, PromptInput, add_prompt_arguments, read_inputs
from penstock.collector import uncollected
from penstock.errors import RequestError
from penstock.interface.request_checks import truncated

if TYPE_CHECKING:
    from penstock.api import LLM, PromptDict
    from penstock.length_limits import LengthLimits
    from penstock.sampling.defaults import SamplingDefaults
    from penstock.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 128


RARE = RARE_ENGINE | RARE_SAMPLING | RARE_BEAMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt_arguments(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--chat",
        action="store_true",
        help="treat each prompt as a user's message, in the model's chat template",
    )
    group.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="with --chat: a Jinja template that makes a prompt of messages, in place of the "
        "model's own",
    )
    group.add_argument("--json", action="store_true", help="print a JSON object for each output")
    group.add_argument(
        "--quiet", action="store_true", help="no progress and no summary on standard error"
    )
    add_grammar_arguments(parser)
    add_beam_arguments(parser)
    # --seed is the request's: the engine's own seed only makes up those that are not given.
    # Log-probabilities are not shown here, so they cannot be asked for.
    add_sampling_arguments(
        parser,
        {"max_tokens": _Unasked(DEFAULT_MAX_TOKENS)},
        skip={"logprobs", "prompt_logprobs"},
    )
    add_engine_arguments(parser, skip={"seed", "served_model_name", *ADAPTERS})


def run(args: argparse.Namespace) -> int:
    sampled = msgspec.structs.replace(sampling_params(args), grammar=grammar_of(args))
    asked = checked(with_beams(sampled, args))
    if args.chat_template is not None and not args.chat:
        raise UsageError("argument --chat-template: it is for chats; add --chat")
    given = read_inputs(args)
    _note_copied(given)
    config = msgspec.structs.asdict(engine_config(args))
    del config["seed"]  # the request's, see add_arguments

    with uncollected():
        from penstock.cli.load import loaded

    with loaded(config, args.chat_template, quiet=args.quiet) as llm:
        params = _completed(asked, args, llm.config.sampling_defaults)
        live = len(given) == 1 and params.n == 1 and not args.json
        several = len(set(args.file)) > 1
        writer: Writer = (
            JsonWriter(sys.stdout, several)
            if args.json
            else LiveWriter(sys.stdout)
            if live
            else TextWriter(sys.stdout)
        )
        accepted, failures = _accepted(llm, given, params, args, writer)
        batch = Batch(*accepted, writer, progress=not (live or args.quiet))
        if accepted.inputs:
            batch.run(llm)
    if accepted.inputs and not args.quiet:
        print(batch.summary(), file=sys.stderr)
    if batch.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failures or batch.failures else 0


class _Accepted(NamedTuple):
    """The prompts that can be served, with the tokens and the options of each."""

    inputs: list[PromptInput]
    prompts: list[PromptDict]
    params: list[SamplingParams]


def _accepted(
    llm: LLM,
    given: Sequence[PromptInput | BadLine],
    params: SamplingParams,
    args: argparse.Namespace,
    writer: Writer,
) -> tuple[_Accepted, int]:
    """What can be served of ``given``, and how many lines of files cannot, which are written as
    failed. Raises RequestError for a prompt of the command line, and UsageError for a grammar."""
    accepted, failures = _Accepted([], [], []), 0
    for each in given:
        try:
            if isinstance(each, BadLine):
                raise RequestError(each.error)
            _check_fields(each)
            prompt = _prompt(llm, each.text, args.chat)
            lengths = llm.config.lengths
            prompt["prompt_token_ids"] = truncated(prompt["prompt_token_ids"], params, lengths)
            own = params
            if isinstance(args.max_tokens, _Unasked):
                own = _fitting(params, prompt, lengths)
            llm.check(prompt, own)
        except RequestError as error:
            if error.param == GRAMMAR:  # no line's own: the command's
                with naming_option(args):
                    raise
            if each.origin is None:
                raise
            writer.failed(each, str(error))
            failures += 1
            continue
        accepted.inputs.append(each)
        accepted.prompts.append(prompt)
        accepted.params.append(own)
    return accepted, failures


def _note_copied(given: Sequence[PromptInput | BadLine]) -> None:
    """Say which fields of lines look like options: they are the user's own, and change nothing."""
    from penstock.sampling.params import SamplingParams

    fields = {name for each in given if isinstance(each, PromptInput) for name in each.fields}
    copied = [name for name in SamplingParams.__struct_fields__ if name in fields]
    if copied:
        print(
            f"note: {', '.join(copied)}: such fields of lines are copied, not used; options of the "
            "command line hold for all prompts",
            file=sys.stderr,
        )


def _check_fields(given: PromptInput) -> None:
    for name in given.fields:
        if name in OUTPUT_FIELDS:
            raise RequestError(f"its field {name!r} has the name of one of the output's; rename it")


class _Unasked(int):
    """An option's value that the user has not asked for: it gives way to what is left."""


def _completed(
    params: SamplingParams, args: argparse.Namespace, defaults: SamplingDefaults
) -> SamplingParams:
    """``params`` with the model's own defaults for what the user has not asked for."""
    own: dict[str, Any] = {}
    if params.beam_search is None:
        own |= {name: value for name, value in defaults.sampled.items() if not hasattr(args, name)}
    if isinstance(args.max_tokens, _Unasked) and defaults.max_tokens is not None:
        own["max_tokens"] = defaults.max_tokens
    return msgspec.structs.replace(params, **own)


def _fitting(params: SamplingParams, prompt: PromptDict, lengths: LengthLimits) -> SamplingParams:
    """``params`` with no more ``max_tokens`` than an answer to the prompt may have."""
    remaining = max(lengths.room(len(prompt["prompt_token_ids"])), 1)
    return msgspec.structs.replace(
        params, max_tokens=min(params.max_tokens or remaining, remaining)
    )


def _prompt(llm: LLM, text: str, chat: bool) -> PromptDict:
    """The prompt's tokens, with ``chat`` in the model's chat template."""
    tokenizer = llm.tokenizer
    if not chat:
        return {"prompt_token_ids": tokenizer.encode(text)}
    if not tokenizer.has_chat_template:
        raise UsageError(
            "argument --chat: the model has no chat template; leave --chat out, or name "
            "a file with one by --chat-template"
        )
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": text}])
    return {"prompt_token_ids": tokenizer.encode(rendered, add_special_tokens=False)}
