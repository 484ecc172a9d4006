"""What may be written to a terminal."""

from __future__ import annotations

import io

from support.terminal_text import TerminalText

from penstock.terminal import harmless, visible


def test_control_characters_are_pictures() -> None:
    assert visible("\x1b[2J\r\x7f\x9b\t\n") == "␛[2J␍␡\N{REPLACEMENT CHARACTER}\t\n"


def test_only_terminals_are_spared() -> None:
    assert harmless("\x1b[2J", TerminalText()) == "␛[2J"
    for stream in (io.StringIO(), None):
        assert harmless("\x1b[2J", stream) == "\x1b[2J"
