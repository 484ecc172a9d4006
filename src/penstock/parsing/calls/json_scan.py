"""JSON read character by character, as a model writes it."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 100
"""Deepest nesting of arrays and objects: what a client's own decoder accepts."""

SPACE = " \t\n\r"
_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_LITERAL_CHARACTERS = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")


class NotJson(Exception):
    """The text cannot become a JSON value any more."""


class Expect(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    NOTHING = auto()


class JsonScan:
    """Follows one JSON object or array. ``feed`` raises NotJson at the first wrong character."""

    def __init__(self) -> None:
        self.expect = Expect.VALUE
        self._stack: list[str] = []
        self._in_string = False
        self._escaped = False
        self._hex_left = 0
        self._literal = ""

    @property
    def depth(self) -> int:
        return len(self._stack)

    @property
    def done(self) -> bool:
        return self.expect is Expect.NOTHING

    @property
    def inside_token(self) -> bool:
        """Whether the next character belongs to, or ends, a string or literal."""
        return self._in_string or bool(self._literal)

    def feed(self, char: str) -> None:
        if self._in_string:
            self._string(char)
            return
        if self._literal:
            if char in _LITERAL_CHARACTERS:
                self._literal += char
                return
            if not _LITERAL.fullmatch(self._literal):
                raise NotJson
            self._literal = ""
            self.expect = Expect.COMMA_OR_END
        if char not in SPACE:
            self._token(char)

    def _string(self, char: str) -> None:
        if self._hex_left:
            if char not in _HEX:
                raise NotJson
            self._hex_left -= 1
        elif self._escaped:
            if char not in _ESCAPES:
                raise NotJson
            self._escaped = False
            self._hex_left = 4 if char == "u" else 0
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            is_key = self.expect in (Expect.KEY, Expect.KEY_OR_END)
            self.expect = Expect.COLON if is_key else Expect.COMMA_OR_END
        elif char < " ":
            raise NotJson

    def _token(self, char: str) -> None:
        expect = self.expect
        takes_value = expect in (Expect.VALUE, Expect.VALUE_OR_END)
        if char in "{[" and takes_value and self.depth < MAX_DEPTH:
            self._stack.append(char)
            self.expect = Expect.KEY_OR_END if char == "{" else Expect.VALUE_OR_END
        elif char == '"' and self._stack and expect is not Expect.COLON:
            if expect in (Expect.COMMA_OR_END, Expect.NOTHING):
                raise NotJson
            self._in_string = True
        elif char == ":" and expect is Expect.COLON:
            self.expect = Expect.VALUE
        elif char == "," and expect is Expect.COMMA_OR_END:
            self.expect = Expect.KEY if self._stack[-1] == "{" else Expect.VALUE
        elif (char == "}" and self._closes("{", Expect.KEY_OR_END)) or (
            char == "]" and self._closes("[", Expect.VALUE_OR_END)
        ):
            self._stack.pop()
            self.expect = Expect.COMMA_OR_END if self._stack else Expect.NOTHING
        elif takes_value and self._stack and char in _LITERAL_CHARACTERS:
            self._literal = char
        else:
            raise NotJson

    def _closes(self, opening: str, empty: Expect) -> bool:
        return (
            bool(self._stack)
            and self._stack[-1] == opening
            and self.expect in (Expect.COMMA_OR_END, empty)
        )
