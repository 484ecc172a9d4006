"""What may be written to a terminal."""

from __future__ import annotations

import io
import json

from support.terminal_text import TerminalText

from penstock.terminal import harmless, json_for_terminals, visible


def test_control_characters_are_pictures() -> None:
    assert visible("\x1b[2J\r\x7f\x9b\t\n") == "␛[2J␍␡\N{REPLACEMENT CHARACTER}\t\n"


def test_only_terminals_are_spared() -> None:
    assert harmless("\x1b[2J", TerminalText()) == "␛[2J"
    for stream in (io.StringIO(), None):
        assert harmless("\x1b[2J", stream) == "\x1b[2J"


def test_json_of_the_same_value() -> None:
    text = "".join(map(chr, range(0x20, 0x100))) + "\u2028é☃"
    escaped = json_for_terminals(json.dumps(text, ensure_ascii=False))
    assert json.loads(escaped) == text
    assert visible(escaped) == escaped
