"""Where the results of ``penstock generate`` are written, and what is said of them."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest
from support.terminal_text import TerminalText

from penstock.cli.batch import Batch, JsonWriter, LiveWriter, Record, TextWriter
from penstock.cli.prompts import PromptInput
from penstock.frontend.outputs import (
    CompletionOutput,
    RequestMetrics,
    RequestOutput,
    SequenceRecord,
)

STEERS = "\x1b]0;title\x07 a\tb\n"
SHOWN = "␛]0;title␇ a\tb\n"


def live(stream: TextIO) -> None:
    LiveWriter(stream).tokens(STEERS)


def record(text: str) -> Record:
    return Record(
        index=0,
        text=text,
        finish_reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=1,
        ttft_s=0.0,
        seconds=0.0,
    )


def whole(stream: TextIO) -> None:
    TextWriter(stream).done(0, PromptInput("\x1b[2J"), [record(STEERS)])


@pytest.mark.parametrize("write", [live, whole])
def test_a_text_cannot_steer_the_terminal(write: Callable[[TextIO], None]) -> None:
    terminal, file = TerminalText(), io.StringIO()
    write(terminal)
    write(file)
    assert SHOWN in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()
    assert STEERS in file.getvalue()


def test_json_cannot_steer_the_terminal() -> None:
    terminal, file = TerminalText(), io.StringIO()
    for stream in (terminal, file):
        JsonWriter(stream, False).done(0, PromptInput("\x9b2J"), [record("\x9b2J\x7f\x1b[2J")])
    assert json.loads(terminal.getvalue())["text"] == "\x9b2J\x7f\x1b[2J"
    assert not set(terminal.getvalue()) & set("\x1b\x7f\x9b")
    assert file.getvalue() == terminal.getvalue()


def test_what_failed_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = TerminalText()
    monkeypatch.setattr("sys.stderr", terminal)
    TextWriter(io.StringIO()).failed(PromptInput("x"), STEERS)
    assert terminal.getvalue() == f"penstock: error: {SHOWN}\n"


class InterruptedModel:
    """Makes a token of every prompt a step; Ctrl-C comes while the third is computed."""

    def stream(self, prompts: list[Any], params: list[Any], started: list[str]) -> Iterator[Any]:
        started += map(str, range(len(prompts)))
        records = [SequenceRecord(None) for _ in prompts]
        for step in range(1, 9):
            if step == 3:
                signal.raise_signal(signal.SIGINT)
            clock = RequestMetrics(1.0, first_token_time=1.5, last_token_time=0.5 + step)
            for name, prompt, record in zip(started, prompts, records, strict=True):
                record.token_ids.append(7)
                sequences = [CompletionOutput(0, record)]
                ids = prompt["prompt_token_ids"]
                yield RequestOutput(name, None, ids, sequences, False, None, 0, clock)


@pytest.mark.parametrize(
    ("prompts", "begins", "ends"),
    [
        (1, "3 tokens in ", "; first token after 0.500 s, then 1.0 tokens/s; interrupted: 0 of 1"),
        (2, "5 tokens in ", " after 10 prompt tokens; interrupted: 0 of 2"),
    ],
)
def test_tokens_of_what_ctrl_c_stopped_are_counted(prompts: int, begins: str, ends: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        given = [PromptInput("x")] * prompts
        params: list[Any] = [None] * prompts
        ids: list[Any] = [{"prompt_token_ids": [1] * 5}] * prompts
        batch = Batch(given, ids, params, TextWriter(io.StringIO()), progress=False)
        model: Any = InterruptedModel()
        batch.run(model)
    finally:
        signal.signal(signal.SIGINT, before)
    assert batch.interrupted
    assert batch.summary().startswith(begins)
    assert batch.summary().endswith(f"{ends} prompts are done")
