"""Readers of calls that are written as one sequence of steps, each of which takes characters."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Final

from penstock.parsing.calls.call_reader import MAX_NAME, NotACall, Tools
from penstock.parsing.calls.json_scan import SPACE

Steps = Generator[None, str, None]
"""Takes a character whenever it is resumed."""
Reads = Generator[None, str, str]
"""The same, and what was read in the end."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]")


class SteppedCall(ABC):
    """What arguments mean is written as JSON while the call is read; :meth:`_read` is the whole
    call, and raises NotACall where a character cannot go on with it."""

    def __init__(self, tools: Tools) -> None:
        self.name: str | None = None
        self.done = False
        self._tools = tools
        self._characters: list[str] = []
        self._ahead = ""  # read, and put back
        self._new = ""  # of the JSON, not taken yet
        self._read_to = 0  # past the text of which there is JSON
        self._taken_to = 0
        self._steps = self._read()
        next(self._steps)

    @property
    def announced(self) -> bool:
        return self.name is not None and self._read_to > 0

    def feed(self, char: str) -> None:
        self._characters.append(char)
        try:
            self._steps.send(char)
        except StopIteration:
            self.done = True

    def take(self, broken: bool = False) -> str:
        """What breaks is never part of the JSON."""
        new, self._new = self._new, ""
        self._taken_to = self._read_to
        return new

    def rest(self) -> str:
        return "".join(self._characters[self._taken_to if self.announced else 0 :])

    def text(self) -> str:
        return "".join(self._characters)

    @abstractmethod
    def _read(self) -> Steps: ...

    # Steps that calls are made of.

    def _write(self, json: str, unread: int = 0) -> None:
        """More of the arguments, without the last ``unread`` characters fed."""
        self._new += json
        self._read_to = len(self._characters) - unread

    def _next(self) -> Reads:
        char, self._ahead = self._ahead, ""
        return char or (yield)

    def _after_space(self) -> Reads:
        """The next character that is no space."""
        char = " "
        while char in SPACE:
            char = yield from self._next()
        return char

    def _one_of(self, *marks: str) -> Reads:
        """The first of ``marks`` that follows, none of which begins with another. Space before and
        around it is passed."""
        wanted = [mark.strip() for mark in marks]
        if "" in wanted:
            return ""
        text = yield from self._after_space()
        while text not in wanted:
            if not any(mark.startswith(text) for mark in wanted):
                raise NotACall
            text += yield from self._next()
        return text

    def _called(self) -> Steps:
        """The name of one of the tools."""
        name, char = "", (yield from self._after_space())
        while _NAME.match(char):
            name += char
            if len(name) > MAX_NAME:
                raise NotACall
            char = yield from self._next()
        if name not in self._tools:
            raise NotACall
        self._ahead = char
        self.name = name

    def _until(self, mark: str, most: int | None = None) -> Reads:
        """The text before ``mark``, of at most ``most`` characters."""
        characters: list[str] = []
        while True:
            char = yield from self._next()
            characters.append(char)
            if char == mark[-1] and "".join(characters[-len(mark) :]) == mark:
                return "".join(characters[: -len(mark)])
            if most is not None and len(characters) > most + len(mark):
                raise NotACall
