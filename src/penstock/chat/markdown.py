"""Shows Markdown on a terminal while it comes.

Libraries that render Markdown need all of it, and draw the screen anew with every token, which
fails where an answer is longer than the screen. Here nothing that was written is touched again:
what may still turn out to be a mark is held back until it is decided, at most to the end of its
line.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.chat.wrapped_text import WrappedText
from penstock.terminal import visible

BOLD: Final = "1"
DIM: Final = "2"
ITALIC: Final = "3"
CODE: Final = "36"

_UNDECIDED: Final = re.compile(r"[ \t]*(#{0,6}|[-*_+][-*_+ \t]*|\d{1,9}[.)]?|>|`+|~+)[ \t]*")
"""A line's beginning that may become the mark of a block, or text."""
_HEADING: Final = re.compile(r" {0,3}#{1,6}[ \t]+")
_BULLET: Final = re.compile(r"([ \t]*)[-*+][ \t]+")
_NUMBER: Final = re.compile(r"[ \t]*\d{1,9}[.)][ \t]+")
_QUOTE: Final = re.compile(r" {0,3}>[ \t]?")
_RULE: Final = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*")
_FENCE: Final = re.compile(r"[ \t]*(`{3,}|~{3,})[^`]*")

_LONGEST_SPAN: Final = 400
"""Characters after which a mark is taken for text if nothing has closed it."""
_MARKS: Final = re.compile(r"[`*_\\]")
_SPANS: Final = (
    ("`", re.compile(r"(`+)(?!`)(.{1,400}?)(?<!`)\1(?!`)"), CODE),
    ("*", re.compile(r"(\*\*\*)(?=[^\s*])(.{1,400}?)(?<=[^\s*])\*\*\*"), f"{BOLD};{ITALIC}"),
    ("*", re.compile(r"(\*\*)(?=[^\s*])(.{1,400}?)(?<=\S)\*\*(?!\*)"), BOLD),
    ("*", re.compile(r"(\*)(?=[^\s*])(.{1,400}?)(?<=[^\s*])\*(?!\*)"), ITALIC),
    ("_", re.compile(r"(__)(?=[^\s_])(.{1,400}?)(?<=\S)__(?!\w)"), BOLD),
    ("_", re.compile(r"(_)(?=[^\s_])(.{1,400}?)(?<=[^\s_])_(?!\w)"), ITALIC),
)
"""The mark that a span begins with, the whole span, and its style."""
_ESCAPE: Final = re.compile(r"\\[!-/:-@\[-`{-~]")


class Markdown:
    """Writes one answer to ``text``: headings, emphasis, code, lists, quotes and rules.

    What it does not know, such as tables and links, is shown as it is written.
    """

    def __init__(self, text: WrappedText) -> None:
        self._text = text
        self._line = ""
        """What of the current line is not shown yet."""
        self._begun = False
        """Whether the current line's block is decided."""
        self._style = ""
        """The style of all of the current line."""
        self._fence = ""
        """What ends the code block that the current line is in."""
        self._hidden = False
        """Whether the current line is a fence, which is not shown."""
        self._before = ""
        """The last character that was shown, which tells marks within words."""

    def push(self, text: str) -> None:
        """Show more of the answer."""
        *lines, rest = visible(text).split("\n")
        for line in lines:
            self._line += line
            self._show(complete=True)
            self._end_line()
        self._line += rest
        self._show(complete=False)
        self._text.flush()

    def finish(self) -> None:
        """Show what was held back, and end the line."""
        self._show(complete=True)
        self._text.end()

    def _show(self, complete: bool) -> None:
        """Show what of the line is decided: all of it, if it is complete."""
        if self._fence:
            self._show_code(complete)
            return
        if not self._begun:
            if not complete and (
                _UNDECIDED.fullmatch(self._line) or _FENCE.fullmatch(self._line) is not None
            ):
                return
            self._begin(complete)
            if self._fence or not self._line:
                return
        self._line = self._inline(self._line, self._style, complete)

    def _begin(self, complete: bool) -> None:
        """Decide what block the line is, and show its mark."""
        line = self._line
        self._begun = True
        fence = _FENCE.fullmatch(line)
        if fence is not None:
            self._fence, self._line, self._hidden = fence[1], "", True
        elif _RULE.fullmatch(line) and complete:
            self._text.write_verbatim("─" * 20, DIM)
            self._line = ""
        elif (heading := _HEADING.match(line)) is not None:
            self._style, self._line = BOLD, line[heading.end() :]
        elif (bullet := _BULLET.match(line)) is not None:
            self._mark(f"{bullet[1]}• ", bullet.end())
        elif (number := _NUMBER.match(line)) is not None:
            self._mark(number[0], number.end())
        elif (quote := _QUOTE.match(line)) is not None:
            self._text.write_verbatim("│ ", DIM)
            self._text.hang("│ ", DIM)
            self._line = line[quote.end() :]

    def _mark(self, mark: str, end: int) -> None:
        mark = mark.replace("\t", "    ")
        self._text.write_verbatim(mark)
        self._text.hang(" " * len(mark))
        self._line = self._line[end:]

    def _show_code(self, complete: bool) -> None:
        stripped = self._line.strip()
        if not self._begun:
            if not complete and self._fence.startswith(stripped[: len(self._fence)]):
                return  # it may be the end
            if stripped.startswith(self._fence) and not stripped.strip(self._fence[0]):
                self._fence, self._line, self._hidden = "", "", True
                return
        self._begun = True
        self._text.write_verbatim(self._line.replace("\t", "    "), CODE)
        self._line = ""

    def _end_line(self) -> None:
        if not self._hidden:
            self._text.newline()
        self._line, self._style, self._before = "", "", ""
        self._begun = self._hidden = False

    def _inline(self, line: str, style: str, complete: bool) -> str:
        """Show ``line`` up to a mark that is not decided; returns the rest."""
        while line:
            mark = _MARKS.search(line)
            if mark is None:
                self._write(line, style)
                return ""
            self._write(line[: mark.start()], style)
            line = line[mark.start() :]
            taken = self._span(line, style, complete)
            if taken == 0:
                return line
            line = line[taken:]
        return ""

    def _span(self, line: str, style: str, complete: bool) -> int:
        """Show the span or the mark that ``line`` begins with; returns its length, or 0 if more
        of the line must come before it is decided."""
        char = line[0]
        if char == "\\":
            if len(line) == 1 and not complete:
                return 0
            escape = _ESCAPE.match(line)
            self._write(line[1] if escape else "\\", style)
            return 2 if escape else 1
        run = len(line) - len(line.lstrip(char))
        if run == len(line) and not complete:
            return 0
        # Scripts without spaces have marks between their characters.
        within_word = self._before.isascii() and self._before.isalnum() and char != "`"
        if not within_word:
            for begins, span, own in _SPANS:
                match = span.match(line) if begins == char else None
                if match is not None and (complete or match.end() < len(line)):
                    both = ";".join(filter(None, (style, own)))
                    if char == "`":
                        self._write(match[2], both)
                    else:
                        self._inline(match[2], both, complete=True)
                    return match.end()
            opens = char == "`" or run == len(line) or not line[run].isspace()
            if opens and not complete and len(line) < _LONGEST_SPAN:
                return 0
        self._write(line[:run], style)
        return run

    def _write(self, text: str, style: str) -> None:
        if text:
            self._text.write(text, style)
            self._before = text[-1]
