"""Where the results of ``penstock generate`` are written."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TextIO

import pytest
from support.terminal_text import TerminalText

from penstock.cli.batch import LiveWriter, Record, TextWriter
from penstock.cli.prompts import PromptInput

STEERS = "\x1b]0;title\x07 a\tb\n"
SHOWN = "␛]0;title␇ a\tb\n"


def live(stream: TextIO) -> None:
    LiveWriter(stream).tokens(STEERS)


def whole(stream: TextIO) -> None:
    record = Record(
        index=0,
        text=STEERS,
        finish_reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        output_tokens=1,
        ttft_s=0.0,
        seconds=0.0,
    )
    TextWriter(stream).done(0, PromptInput("\x1b[2J"), [record])


@pytest.mark.parametrize("write", [live, whole])
def test_a_text_cannot_steer_the_terminal(write: Callable[[TextIO], None]) -> None:
    terminal, file = TerminalText(), io.StringIO()
    write(terminal)
    write(file)
    assert SHOWN in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()
    assert STEERS in file.getvalue()


def test_what_failed_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = TerminalText()
    monkeypatch.setattr("sys.stderr", terminal)
    TextWriter(io.StringIO()).failed(PromptInput("x"), STEERS)
    assert terminal.getvalue() == f"penstock: error: {SHOWN}\n"
