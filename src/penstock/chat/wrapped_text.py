"""Writes styled text to a terminal as it comes, and breaks lines between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final, TextIO

RESET: Final = "\x1b[0m"
_WORDS: Final = re.compile(r"[ \t]+|[^ \t]+")


def columns_of(text: str) -> int:
    """How many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


class WrappedText:
    """One stream of text. A word is written when it is complete, so that it stands on one line.

    ``columns`` gives the terminal's width, which may change. Without ``styled``, no escape
    sequences are written.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int], styled: bool) -> None:
        self._stream = stream
        self._columns = columns
        self._styled = styled
        self._hanging = ""
        self._hanging_style = ""
        self._at = 0
        """Columns that the line has so far, with its spaces."""
        self._space = ""
        self._word: list[tuple[str, str]] = []
        self._width = 0

    @property
    def at_start(self) -> bool:
        """Whether the line is empty so far."""
        return self._at == 0 and not self._word and not self._space

    def hang(self, prefix: str, style: str = "") -> None:
        """Begin each line that follows in this paragraph, when it is broken, with ``prefix``."""
        self._hanging, self._hanging_style = prefix, style

    def write(self, text: str, style: str = "") -> None:
        """Append a part of a line. ``style`` is an SGR code such as ``1`` for bold."""
        for part in _WORDS.findall(text):
            if part[0] in " \t":
                self._end_word()
                self._space += part.replace("\t", "    ")
            else:
                self._add(part, style)

    def write_verbatim(self, text: str, style: str = "") -> None:
        """Append what is not broken but by the terminal, such as a line of code."""
        self._end_word()
        self._put(self._space, "")
        self._space = ""
        self._put(text, style)

    def newline(self) -> None:
        """End the line and forget the hanging prefix."""
        self._end_word()
        self._space = ""
        self._stream.write("\n")
        self._at = 0
        self.hang("")

    def flush(self) -> None:
        self._stream.flush()

    def end(self) -> None:
        """Write what is held, and end the line unless it is empty."""
        self._end_word()
        if not self.at_start:
            self.newline()
        self.flush()

    def _add(self, word: str, style: str) -> None:
        """Append to the current word. Wide characters, which come without spaces, are words."""
        if word.isascii():
            self._append(word, len(word), style)
            return
        for char in word:
            columns = _columns(char)
            if columns == 2:
                self._end_word()
            self._append(char, columns, style)
            if columns == 2:
                self._end_word()

    def _append(self, text: str, columns: int, style: str) -> None:
        if self._word and self._word[-1][1] == style:
            text = self._word.pop()[0] + text
        self._word.append((text, style))
        self._width += columns

    def _end_word(self) -> None:
        if not self._word:
            return
        most = self._columns()
        if self._at and self._at + len(self._space) + self._width > most:
            hanging = columns_of(self._hanging)
            if hanging + self._width <= most or self._at > hanging:
                self._stream.write("\n")
                self._at, self._space = 0, ""
                self._put(self._hanging, self._hanging_style)
        self._put(self._space, "")
        for text, style in self._word:
            self._put(text, style)
        self._word.clear()
        self._space, self._width = "", 0

    def _put(self, text: str, style: str) -> None:
        if text:
            self._stream.write(f"\x1b[{style}m{text}{RESET}" if style and self._styled else text)
            self._at += columns_of(text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
