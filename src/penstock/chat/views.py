"""How an answer is shown while it comes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Final, Protocol, TextIO

from penstock.chat.markdown import DIM, Markdown
from penstock.chat.wrapped_text import WrappedText
from penstock.terminal import columns, harmless, visible

_SECOND_COLUMN: Final = re.compile(r"\S.*?  +(?=\S)")
"""What stands before the second column of a line of a table."""


class AnswerView(Protocol):
    """Shows one answer."""

    def reasoning(self, text: str) -> None:
        """Show more of what the model thinks before it answers."""

    def content(self, text: str) -> None:
        """Show more of the answer."""

    def finish(self) -> None:
        """Show what was held back, and end the line."""


class Screen:
    """Where a conversation is shown.

    A terminal is given Markdown with emphasis and code in colours, and lines that are broken
    between words; one that should have no colours (``NO_COLOR``, ``TERM=dumb``) plain text. What
    is no terminal is given the answers as they are, without reasoning, and nothing else: lines
    about the conversation then go to ``aside``, standard error.
    """

    def __init__(
        self,
        stream: TextIO,
        environ: Mapping[str, str] = os.environ,
        aside: TextIO | None = None,
    ) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._colours = not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb")
        self._aside = stream if self.is_terminal else aside or sys.stderr

    def answer(self) -> AnswerView:
        if self.is_terminal and self._colours:
            return _MarkdownView(self._text(self.stream))
        return _PlainView(self.stream, self.is_terminal)

    def say(self, text: str, style: str = "") -> None:
        """Write lines about the conversation, broken between words."""
        if not self._aside.isatty():
            self._aside.write(text + "\n")
            self._aside.flush()
            return
        wrapped = self._text(self._aside)
        for line in visible(text).split("\n"):
            indent = _SECOND_COLUMN.match(line)
            wide = indent is not None and indent.end() + 16 <= columns(self._aside)
            wrapped.hang(" " * indent.end() if indent is not None and wide else "")
            wrapped.write(line, style)
            wrapped.newline()
        wrapped.flush()

    def remark(self, text: str) -> None:
        """Write lines of less weight."""
        self.say(text, DIM)

    def _text(self, terminal: TextIO) -> WrappedText:
        return WrappedText(terminal, lambda: columns(terminal), self._colours)


class _MarkdownView:
    def __init__(self, text: WrappedText) -> None:
        self._text = text
        self._markdown = Markdown(text)
        self._reasoned = False

    def reasoning(self, text: str) -> None:
        self._reasoned = True
        first, *lines = visible(text).split("\n")
        self._text.write(first, DIM)
        for line in lines:
            self._text.newline()
            self._text.write(line, DIM)
        self._text.flush()

    def content(self, text: str) -> None:
        if self._reasoned:
            self._text.end()
            self._text.newline()
            self._reasoned = False
        self._markdown.push(text)

    def finish(self) -> None:
        self._markdown.finish()


class _PlainView:
    """The text as it is; on a terminal control characters are shown as pictures, and reasoning
    between lines that say so."""

    def __init__(self, stream: TextIO, is_terminal: bool) -> None:
        self._stream = stream
        self._is_terminal = is_terminal
        self._in_reasoning = False
        self._last = "\n"

    def reasoning(self, text: str) -> None:
        if not self._is_terminal:
            return
        if not self._in_reasoning:
            self._write("(reasoning)\n")
            self._in_reasoning = True
        self._write(text)

    def content(self, text: str) -> None:
        if self._in_reasoning:
            self._write("\n(answer)\n" if self._last != "\n" else "(answer)\n")
            self._in_reasoning = False
        self._write(text)

    def finish(self) -> None:
        if self._last != "\n":
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(harmless(text, self._stream))
            self._stream.flush()
            self._last = text[-1]
