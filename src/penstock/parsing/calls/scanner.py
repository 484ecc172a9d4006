"""Calls of tools in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.parsing.calls.call_reader import Tools
from penstock.parsing.calls.call_run import CallRun, Outcome
from penstock.parsing.calls.readers import reader_of
from penstock.parsing.forms import NamedForm
from penstock.parsing.pieces import CallPiece
from penstock.parsing.reasoning import beginning_at_end
from penstock.parsing.style import ToolStyle


class _MoreText(Exception):
    """What the text means depends on what follows."""


class ToolScanner:
    """One pass over a text; yields content as strings, and calls.

    What turns out to be no call is content, all of it. Around calls, the marks of the style and
    white space are left out.
    """

    def __init__(self, style: ToolStyle, tools: Tools, eager: bool, single: bool) -> None:
        self._style = style
        self._tools = tools
        self._eager = eager
        self._single = single
        opening = "" if style.section is None else style.section[0]
        self._marks = [mark for mark in (style.opening, opening) if mark]
        self._text = ""  # not yet understood
        self._final = False
        self._state = self._bare_start if style.bare else self._content
        self._seen = ""  # passed since content ended; content after all if no call follows
        self._in_list = False
        self._run: CallRun | None = None
        self._space = ""  # after content, left out if a call follows
        self._called = False  # a call was the last thing seen

    def push(self, text: str) -> Iterator[str | CallPiece]:
        """Empty pieces are never yielded."""
        self._text += text
        try:
            while self._text or self._final:
                yield from self._state()
        except _MoreText:
            pass

    def finish(self) -> Iterator[str | CallPiece]:
        self._final = True
        yield from self.push("")
        if self._space and not self._called:
            yield self._space

    # States. Each takes something from the text or changes the state, or raises _MoreText.

    def _content(self) -> Iterator[str | CallPiece]:
        found = [(at, mark) for mark in self._marks if (at := self._text.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            yield from self._show(self._text[:at])
            self._text = self._text[at + len(mark) :]
            self._seen = mark
            self._state = self._enter if mark == self._style.opening else self._section
            return
        kept = 0
        if not self._final:
            kept = max((beginning_at_end(self._text, mark) for mark in self._marks), default=0)
        end = len(self._text) - kept
        content, self._text = self._text[:end], self._text[end:]
        yield from self._show(content)
        raise _MoreText

    def _section(self) -> Iterator[str | CallPiece]:
        """Reads before a call in a section."""
        self._skip()
        opening = self._style.opening
        if self._starts_with(opening):
            self._pass(len(opening))
            self._state = self._enter
        else:
            self._state = self._give_up
        yield from ()

    def _bare_start(self) -> Iterator[str | CallPiece]:
        """Reads at the beginning or after a call, where one may follow without an opening."""
        self._skip(self._style.separators if self._called else "")
        first = self._first()
        starts = first == "{" or (first == "[" and self._style.lists and not self._called)
        self._state = self._enter if starts else self._give_up
        yield from ()

    def _enter(self) -> Iterator[str | CallPiece]:
        """Reads what follows an opening, or a comma in a list."""
        self._skip()
        first = self._first()
        if first == "[" and self._style.lists and not self._in_list:
            self._in_list = True
            self._pass(1)
        elif first and (call := reader_of(self._style, first, self._in_list, self._tools)):
            self._run = CallRun(call, self._eager)
            self._state = self._in_call
        else:
            self._state = self._give_up
        yield from ()

    def _in_call(self) -> Iterator[str | CallPiece]:
        assert self._run is not None
        piece, self._text, outcome = self._run.take(self._text, self._final)
        if piece is not None:
            self._called = True
            self._seen = self._space = ""
            yield piece
        if outcome is Outcome.BROKEN:
            self._state = self._give_up
        elif outcome is Outcome.WHOLE:
            self._state = self._ignore if self._single else self._after

    def _after(self) -> Iterator[str | CallPiece]:
        """Reads what follows a whole call."""
        if self._in_list:
            self._skip()
            if self._first() == ",":
                self._pass(1)
                self._state = self._enter
                return
            self._text = self._text.removeprefix("]")
            self._in_list = False
            self._state = self._close if self._style.closing else self._content
        else:
            self._state = self._close
        yield from ()

    def _close(self) -> Iterator[str | CallPiece]:
        """Reads the text after arguments, if there is any."""
        yield from ()
        form = self._style.form
        mark = form.after_arguments.strip() if isinstance(form, NamedForm) else ""
        if mark:
            self._skip()
            if self._starts_with(mark):
                self._text = self._text[len(mark) :]
        self._state = self._close_call

    def _close_call(self) -> Iterator[str | CallPiece]:
        """Reads the closing, if there is one."""
        yield from ()
        style = self._style
        self._skip()
        closed = bool(style.closing) and self._starts_with(style.closing)
        if closed:
            self._text = self._text[len(style.closing) :]
        if style.section is not None and (closed or not style.closing):
            self._state = self._next
        else:
            self._state = self._bare_start if style.bare and not closed else self._content

    def _next(self) -> Iterator[str | CallPiece]:
        """Reads after a call in a section."""
        assert self._style.section is not None
        self._skip()
        end = self._style.section[1]
        if self._starts_with(end):
            self._text = self._text[len(end) :]
            self._state = self._content
        else:
            self._state = self._section
        yield from ()

    def _give_up(self) -> Iterator[str | CallPiece]:
        """What was passed is content. It may hold an opening further on."""
        seen, self._seen = self._seen, ""
        self._in_list = False
        self._state = self._content
        yield from self._show(seen)

    def _ignore(self) -> Iterator[str | CallPiece]:
        """The answer has ended."""
        yield from ()
        self._text = ""
        raise _MoreText

    def _show(self, content: str) -> Iterator[str]:
        if self._called:
            content = content.lstrip()
        content = self._space + content if content else self._space
        shown = content.rstrip()
        self._space = content[len(shown) :]
        if shown:
            self._called = False
            yield shown

    def _skip(self, also: str = "") -> None:
        """Pass white space."""
        rest = self._text.lstrip(" \t\r\n" + also)
        self._pass(len(self._text) - len(rest))

    def _pass(self, count: int) -> None:
        self._seen += self._text[:count]
        self._text = self._text[count:]

    def _starts_with(self, mark: str) -> bool:
        if mark.startswith(self._text) and self._text != mark and not self._final:
            raise _MoreText
        return self._text.startswith(mark)

    def _first(self) -> str:
        """The next character; none at the end."""
        if not self._text and not self._final:
            raise _MoreText
        return self._text[:1]
