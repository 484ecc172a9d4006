"""Runs the prompts of ``penstock generate``, and writes what becomes of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

import msgspec

from penstock.cli.batch_progress import BatchProgress
from penstock.cli.prompts import BadLine, PromptInput
from penstock.interrupts import Interrupts
from penstock.terminal import harmless, json_for_terminals

if TYPE_CHECKING:
    from penstock.api import LLM, PromptDict
    from penstock.frontend.outputs import CompletionOutput, RequestOutput
    from penstock.sampling.params import SamplingParams


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence that was generated: what a line of ``--json`` adds to the input's own fields."""

    index: int  # which of the prompt's --n sequences
    text: str
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int  # of these, found in the prefix cache
    output_tokens: int
    ttft_s: float  # from the prompt's arrival to its first token
    seconds: float  # until it was finished


OUTPUT_FIELDS = frozenset({"prompt", "file", "line", "error", *Record.__struct_fields__})
"""Names that an input's own fields may not have."""


class Writer(Protocol):
    """Where results go."""

    def tokens(self, text: str) -> None:
        """Write the next piece of the text that comes, if this is shown as it comes."""

    def done(self, number: int, given: PromptInput, records: Sequence[Record]) -> None:
        """Write the sequences of prompt ``number``, counted from 0, which is finished; there are
        none of one that failed."""

    def failed(self, given: PromptInput | BadLine, error: str) -> None:
        """Write why there is nothing of this input."""

    def close(self) -> None:
        """Write what was held back."""


class JsonWriter:
    """One JSON object for each sequence, written when its prompt is finished, with the fields of
    the input's line, and one with ``error`` for what failed. The bytes are the same on a terminal
    and in a file, which may be shown on one later."""

    def __init__(self, stream: TextIO, several_files: bool) -> None:
        self._stream = stream
        self._several = several_files

    def tokens(self, text: str) -> None:
        """Objects are written whole."""

    def done(self, number: int, given: PromptInput, records: Sequence[Record]) -> None:
        for record in records:
            self._write({**self._input(given), **msgspec.structs.asdict(record)})

    def failed(self, given: PromptInput | BadLine, error: str) -> None:
        self._write({**self._input(given), "error": error})

    def close(self) -> None:
        """Nothing is held back."""

    def _input(self, given: PromptInput | BadLine) -> dict[str, object]:
        fields: dict[str, object] = {}
        if isinstance(given, PromptInput):
            fields = {"prompt": given.text, **given.fields}
        if given.origin is not None:
            if self._several:
                fields["file"] = given.origin.file
            fields["line"] = given.origin.line
        return fields

    def _write(self, fields: dict[str, object]) -> None:
        self._stream.write(json_for_terminals(msgspec.json.encode(fields).decode()) + "\n")
        self._stream.flush()


class TextWriter:
    """Writes for people: the texts in the order of the prompts, each below its prompt's beginning.

    A text is written as soon as all before it are, on a terminal without control characters.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0
        self._begun = False
        self._held: dict[int, list[str]] = {}

    def tokens(self, text: str) -> None:
        """Texts are written whole."""

    def done(self, number: int, given: PromptInput, records: Sequence[Record]) -> None:
        head = given.text.splitlines()[0] if given.text.strip() else given.text
        self._held[number] = [f"==> {head}\n{record.text}\n" for record in records]
        while self._next in self._held:
            self._write(self._held.pop(self._next))
            self._next += 1

    def failed(self, given: PromptInput | BadLine, error: str) -> None:
        where = "" if given.origin is None else f"{given.origin.file}, line {given.origin.line}: "
        print(harmless(f"penstock: error: {where}{error}", sys.stderr), file=sys.stderr)

    def close(self) -> None:
        for number in sorted(self._held):
            self._write(self._held.pop(number))

    def _write(self, texts: Sequence[str]) -> None:
        for text in texts:
            shown = harmless(text, self._stream)
            self._stream.write(("\n" if self._begun else "") + shown)
            self._begun = True
        self._stream.flush()


class LiveWriter(TextWriter):
    """Writes for people: the text of a single prompt as its tokens come."""

    def tokens(self, text: str) -> None:
        self._stream.write(harmless(text, self._stream))
        self._stream.flush()

    def done(self, number: int, given: PromptInput, records: Sequence[Record]) -> None:
        """It is written already."""

    def close(self) -> None:
        self._stream.write("\n")


class Batch:
    """Prompts that run together, their clock, and what is shown meanwhile.

    ``prompts`` and ``params`` are those of ``inputs``, one for each.
    """

    def __init__(
        self,
        inputs: Sequence[PromptInput],
        prompts: Sequence[PromptDict],
        params: Sequence[SamplingParams],
        writer: Writer,
        progress: bool,
    ) -> None:
        self._inputs, self._prompts, self._params = inputs, prompts, params
        self._writer = writer
        self._progress = BatchProgress(len(inputs), sys.stderr, progress)
        self._seconds = 0.0
        self._latest: dict[str, RequestOutput] = {}
        """The output so far of each request that has one."""
        self._tokens = 0
        self._finished = 0
        self.failures = 0
        self.interrupted = False
        """Whether Ctrl-C has stopped it: what was finished until then is written."""

    def run(self, llm: LLM) -> None:
        """Generate, and write each prompt's result when it is finished."""
        ids: list[str] = []
        numbers: dict[str, int] = {}
        start = time.perf_counter()
        with Interrupts(interruptible=False) as interrupts:
            for output in llm.stream(self._prompts, self._params, started=ids):
                before = self._latest.get(output.request_id)
                self._latest[output.request_id] = output
                for sequence in output.outputs:
                    news = sequence.since(before.outputs[sequence.index] if before else None)
                    self._tokens += len(news.token_ids)
                    self._writer.tokens(news.text)
                if output.finished:
                    numbers = numbers or {name: i for i, name in enumerate(ids)}
                    self._finish(numbers[output.request_id], output)
                self._progress.show(self._finished, self._tokens)
                if interrupts.asked and self._finished < len(self._inputs):
                    self.interrupted = True
                    break
        self._seconds = time.perf_counter() - start
        self._progress.clear()
        self._writer.close()

    def summary(self) -> str:
        """One line about the tokens that were made, also those of prompts that are not finished."""
        begun = [o for o in self._latest.values() if o.metrics.first_token_time is not None]
        prompt = sum(len(output.prompt_token_ids) for output in begun)
        line = (
            f"{self._tokens:,} tokens in {self._seconds:.2f} s "
            f"({self._tokens / self._seconds:,.1f} tokens/s) after {prompt:,} prompt tokens"
        )
        if len(begun) == 1 and len(begun[0].outputs) == 1:
            clock = begun[0].metrics
            first, last = clock.first_token_time or 0.0, clock.last_token_time or 0.0
            line += f"; first token after {first - clock.arrival_time:.3f} s"
            if last > first:
                line += f", then {(self._tokens - 1) / (last - first):,.1f} tokens/s"
        if self.interrupted:
            done = self._finished - self.failures
            line += f"; interrupted: {done} of {len(self._inputs)} prompts are done"
        return line

    def _finish(self, number: int, output: RequestOutput) -> None:
        given = self._inputs[number]
        self._finished += 1
        self._progress.clear()
        if output.error is not None:
            self.failures += 1
            self._writer.failed(given, output.error)
            records = []
        else:
            records = [_record(output, sequence) for sequence in output.outputs]
        self._writer.done(number, given, records)


def _record(output: RequestOutput, sequence: CompletionOutput) -> Record:
    clock = output.metrics
    arrival = clock.arrival_time
    return Record(
        index=sequence.index,
        text=sequence.text,
        finish_reason=sequence.finish_reason,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        output_tokens=len(sequence.token_ids),
        ttft_s=(clock.first_token_time or arrival) - arrival,
        seconds=(clock.finished_time or arrival) - arrival,
    )
