"""Complete prompts, with the model that ships with Penstock or any other.

  penstock generate -p "def fibonacci(n):"
  penstock generate path/to/checkpoint --chat -p "Why is the sky blue?" --temperature 0
  penstock generate -f prompts.jsonl --json > answers.jsonl
  penstock generate -p "A person as JSON: " --json-schema person.json

One prompt is answered as its tokens come; several run together and are printed in order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec

from penstock.cli.grammar_options import add_grammar_arguments, grammar_of
from penstock.cli.options import (
    add_engine_arguments,
    add_sampling_arguments,
    engine_config,
    sampling_params,
)
from penstock.cli.parser import UsageError
from penstock.cli.progress import Progress
from penstock.cli.prompts import add_prompt_arguments, read_prompts
from penstock.collector import uncollected
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.api import LLM, PromptDict
    from penstock.frontend.outputs import CompletionOutput, RequestOutput
    from penstock.sampling.defaults import SamplingDefaults
    from penstock.sampling.params import SamplingParams

DEFAULT_MAX_TOKENS = 128


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``--json``: one sequence that was generated."""

    prompt: str
    index: int  # which of the prompt's --n sequences
    text: str
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int  # of these, found in the prefix cache
    output_tokens: int
    ttft_s: float  # from the prompt's arrival to its first token
    seconds: float  # until it was finished


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
    # --seed is the request's: the engine's own seed only makes up those that are not given.
    # Log-probabilities are not shown here, so they cannot be asked for.
    add_sampling_arguments(
        parser,
        {"max_tokens": _Unasked(DEFAULT_MAX_TOKENS)},
        skip={"logprobs", "prompt_logprobs"},
    )
    add_engine_arguments(parser, skip={"seed", "served_model_name"})


def run(args: argparse.Namespace) -> int:
    asked = msgspec.structs.replace(sampling_params(args), grammar=grammar_of(args))
    if args.chat_template is not None and not args.chat:
        raise UsageError("argument --chat-template: it is for chats; add --chat")
    texts = read_prompts(args)
    config = msgspec.structs.asdict(engine_config(args))
    del config["seed"]  # the request's, see add_arguments

    with uncollected():
        from penstock.api import LLM

    with LLM(**config, chat_template=args.chat_template) as llm:
        if not args.quiet:
            for note in llm.config.notes:
                print(f"penstock: note: {note}", file=sys.stderr)
        prompts = [_prompt(llm, text, args.chat) for text in texts]
        params = _completed(asked, args, llm.config.sampling_defaults)
        each = [params] * len(prompts)
        if isinstance(args.max_tokens, _Unasked):
            each = [_fitting(params, prompt, llm.config.max_model_len) for prompt in prompts]
        live = len(texts) == 1 and params.n == 1 and not args.json
        run = _Run(texts, sys.stdout if live else None, progress=not (live or args.quiet))
        records = run.generate(llm, prompts, each)
    if args.json:
        for record in records:
            sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    elif not live:
        _print_all(records)
    if not args.quiet:
        print(run.summary(records), file=sys.stderr)
    return 0


class _Unasked(int):
    """An option's value that the user has not asked for: it gives way to what is left."""


class _Run:
    """One batch of prompts, its clock, and what is shown meanwhile."""

    def __init__(self, texts: Sequence[str], live: TextIO | None, progress: bool) -> None:
        self._texts = texts
        self._live = live
        self._progress = Progress(len(texts), sys.stderr, progress)
        self._seconds = 0.0

    def generate(
        self, llm: LLM, prompts: Sequence[PromptDict], params: Sequence[SamplingParams]
    ) -> list[Record]:
        """One record per sequence, in the order of the prompts."""
        latest: dict[str, RequestOutput] = {}
        ids: list[str] = []
        tokens = finished = 0
        start = time.perf_counter()
        for output in llm.stream(prompts, params, started=ids):
            before = latest.get(output.request_id)
            latest[output.request_id] = output
            finished += output.finished
            for sequence in output.outputs:
                news = sequence.since(before.outputs[sequence.index] if before else None)
                tokens += len(news.token_ids)
                if self._live is not None:
                    self._live.write(news.text)
                    self._live.flush()
            self._progress.show(finished, tokens)
        self._seconds = time.perf_counter() - start
        self._progress.clear()
        if self._live is not None:
            self._live.write("\n")
        outputs = [latest[request_id] for request_id in ids]
        return [
            _record(text, output, sequence)
            for text, output in zip(self._texts, outputs, strict=True)
            for sequence in output.outputs
        ]

    def summary(self, records: Sequence[Record]) -> str:
        output = sum(record.output_tokens for record in records)
        prompt = sum(record.prompt_tokens for record in records if record.index == 0)
        line = (
            f"{output:,} tokens in {self._seconds:.2f} s ({output / self._seconds:,.1f} tokens/s)"
            f" after {prompt:,} prompt tokens"
        )
        if len(records) == 1:
            (record,) = records
            line += f"; first token after {record.ttft_s:.3f} s"
            if record.seconds > record.ttft_s:
                rate = (record.output_tokens - 1) / (record.seconds - record.ttft_s)
                line += f", then {rate:,.1f} tokens/s"
        return line


def _record(text: str, output: RequestOutput, sequence: CompletionOutput) -> Record:
    if output.error is not None:
        raise PenstockError(f"the prompt {text[:40]!r} failed: {output.error}")
    clock = output.metrics
    arrival = clock.arrival_time
    return Record(
        prompt=text,
        index=sequence.index,
        text=sequence.text,
        finish_reason=sequence.finish_reason,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        output_tokens=len(sequence.token_ids),
        ttft_s=(clock.first_token_time or arrival) - arrival,
        seconds=(clock.finished_time or arrival) - arrival,
    )


def _completed(
    params: SamplingParams, args: argparse.Namespace, defaults: SamplingDefaults
) -> SamplingParams:
    """``params`` with the model's own defaults for what the user has not asked for."""
    own = {name: value for name, value in defaults.sampled.items() if not hasattr(args, name)}
    if isinstance(args.max_tokens, _Unasked) and defaults.max_tokens is not None:
        own["max_tokens"] = defaults.max_tokens
    return msgspec.structs.replace(params, **own)


def _fitting(params: SamplingParams, prompt: PromptDict, longest: int) -> SamplingParams:
    """``params`` with as many ``max_tokens`` as a context of ``longest`` has behind the prompt."""
    remaining = max(longest - len(prompt["prompt_token_ids"]), 1)
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


def _print_all(records: Sequence[Record]) -> None:
    for i, record in enumerate(records):
        head = record.prompt.splitlines()[0] if record.prompt.strip() else record.prompt
        print(("\n" if i else "") + f"==> {head}")
        print(record.text)
