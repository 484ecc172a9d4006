"""The text of one call as Python has it, ``name(city="Brno", days=[1, 2])``, and its JSON."""

from __future__ import annotations

import json
import re
from typing import Final

from penstock.parsing.calls.call_reader import MAX_NAME, NotACall, Tools
from penstock.parsing.calls.json_scan import MAX_DEPTH, SPACE

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+[ \t\r\n]*")
_KEY: Final = re.compile(r"""\s*([^\s=,()\[\]{}"']+)\s*=\s*""")
"""More than Python's names: JSON's may be others, and are written as they are."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WORDS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    **{word: word for word in ("true", "false", "null")},
}
_SPACE: Final = re.compile(r"\s*")
_STRING: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""", re.DOTALL)
_ESCAPE: Final = re.compile(
    r"\\(U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL
)
_ESCAPED: Final = {**dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)), "\n": ""}
_ITSELF: Final = "\\'\"/"


class PythonCall:
    """One call with arguments by name, which are handed on when all are there; values are
    literals."""

    def __init__(self, tools: Tools) -> None:
        self.name: str | None = None
        self.done = False
        self._tools = tools
        self._characters: list[str] = []
        self._head = ""  # what was read of the name
        self._depth = 0
        self._quote = ""
        self._escaped = False
        self._begin = 0  # of the arguments
        self._arguments = ""

    @property
    def announced(self) -> bool:
        return self.done

    def feed(self, char: str) -> None:
        self._characters.append(char)
        if self._depth == 0:
            self._in_name(char)
        elif self._quote:
            ends = char == self._quote and not self._escaped
            self._escaped = char == "\\" and not self._escaped
            self._quote = "" if ends else self._quote
        elif char in "\"'":
            self._quote = char
        elif char in "([{":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise NotACall
        elif char in ")]}":
            self._depth -= 1
            if self._depth == 0:
                self._arguments = _Arguments("".join(self._characters[self._begin : -1])).json()
                self.done = True

    def take(self, broken: bool = False) -> str:
        return self._arguments

    def rest(self) -> str:
        return self.text()

    def text(self) -> str:
        return "".join(self._characters)

    def _in_name(self, char: str) -> None:
        if char == "(":
            self.name = self._head.rstrip(SPACE)
            if self.name not in self._tools:
                raise NotACall
            self._depth = 1
            self._begin = len(self._characters)
        elif self._head or char not in SPACE:
            self._head += char
            if len(self._head) > MAX_NAME or not _NAME.fullmatch(self._head):
                raise NotACall


class _Arguments:
    """Arguments by name, of which all values are literals, as a JSON object."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def json(self) -> str:
        """Raises NotACall for anything else."""
        found: list[str] = []
        self._space()
        while self._at < len(self._text):
            if found:
                self._expect(",")
                if self._at == len(self._text):
                    break
            key = self._match(_KEY)
            found.append(f"{json.dumps(key[1], ensure_ascii=False)}: {self._value(0)}")
            self._space()
        return f"{{{', '.join(found)}}}"

    def _value(self, depth: int) -> str:
        self._space()
        first = self._text[self._at : self._at + 1]
        if first in ("'", '"'):
            return self._string()
        if first == "[":
            return f"[{', '.join(self._items(']', depth))}]"
        if first == "{":
            return f"{{{', '.join(self._items('}', depth))}}}"
        if first and first in "-0123456789":
            return self._match(_NUMBER)[0]
        word = self._match(_WORD)[0]
        if word not in _WORDS:
            raise NotACall
        return _WORDS[word]

    def _items(self, end: str, depth: int) -> list[str]:
        """What a list or an object holds."""
        if depth == MAX_DEPTH:
            raise NotACall
        self._at += 1
        found: list[str] = []
        self._space()
        while not self._text.startswith(end, self._at):
            if found:
                self._expect(",")
                if self._text.startswith(end, self._at):
                    break
            item = self._value(depth + 1)
            if end == "}":
                if not item.startswith('"'):
                    raise NotACall
                self._expect(":")
                item = f"{item}: {self._value(depth + 1)}"
            found.append(item)
            self._space()
        self._at += 1
        return found

    def _string(self) -> str:
        match = self._match(_STRING)
        text = _ESCAPE.sub(_unescaped, match[1] if match[1] is not None else match[2])
        # JSON's escapes spell characters beyond 16 bits as two.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.dumps(text, ensure_ascii=False)

    def _expect(self, mark: str) -> None:
        self._space()
        if not self._text.startswith(mark, self._at):
            raise NotACall
        self._at += 1
        self._space()

    def _space(self) -> None:
        self._match(_SPACE)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise NotACall
        self._at = match.end()
        return match


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1:
        return chr(int(escape[1:], 16))
    return escape if escape in _ITSELF else _ESCAPED.get(escape, match[0])
