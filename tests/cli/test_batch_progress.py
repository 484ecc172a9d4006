"""What is shown while a batch runs."""

from __future__ import annotations

import io

import pytest
from support.terminal_text import TerminalText

from penstock.cli import status_line
from penstock.cli.batch_progress import BatchProgress


def test_it_draws_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now)
    terminal, file, silent = TerminalText(), io.StringIO(), TerminalText()
    shown = [BatchProgress(4, terminal, True), BatchProgress(4, file, True)]
    shown.append(BatchProgress(4, silent, False))
    for progress in shown:
        progress.show(0, 5)
    assert terminal.getvalue() == ""  # perhaps it is done in a moment
    now = 1.0
    for progress in shown:
        progress.show(1, 10)
        progress.show(2, 20)  # too soon to draw again
        progress.clear()
    assert terminal.getvalue().startswith("\r1/4 prompts [#####...............], 10 tokens, ")
    assert "2/4" not in terminal.getvalue()
    assert terminal.getvalue().endswith(" \r")
    assert file.getvalue() == silent.getvalue() == ""
