"""Calls of tools in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.parsing.call_heads import head_pattern, longest_head
from penstock.parsing.call_text import CallText, NotACall
from penstock.parsing.python_call import PythonCall
from penstock.parsing.reasoning import beginning_at_end
from penstock.parsing.styles import ToolStyle
from penstock.parsing.tagged_call import TaggedCall


@dataclass(frozen=True)
class CallPiece:
    """A call begins (``name``), or its arguments go on."""

    name: str | None
    arguments: str


Call = CallText | TaggedCall | PythonCall
"""The text of one call, in the form of a style."""


class _MoreText(Exception):
    """What the text means depends on what follows."""


class ToolScanner:
    """One pass over a text; yields content as strings, and calls.

    What turns out to be no call is content, all of it. Around calls, the marks of the style and
    white space are left out. ``tools`` are the functions that may be called: the schemas of their
    arguments, by their names.
    """

    def __init__(
        self, style: ToolStyle, tools: Mapping[str, Mapping[str, Any]], eager: bool, single: bool
    ) -> None:
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
        self._call: Call | None = None
        self._begun = False  # the call was announced
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
        elif first == "{":
            self._begin(CallText(self._tools))
        elif first and self._style.python and self._in_list:
            self._begin(PythonCall(self._tools))
        elif first and self._style.tags is not None:
            self._begin(TaggedCall(self._style.tags, self._tools))
        elif first and self._style.name_first and not self._in_list:
            self._state = self._name
        else:
            self._state = self._give_up
        yield from ()

    def _name(self) -> Iterator[str | CallPiece]:
        limit = longest_head(self._style)
        head = self._text[:limit]
        match = head_pattern(self._style).match(head)
        if "{" not in head and len(head) < limit and not self._final:
            raise _MoreText
        if match is None or match["name"] not in self._tools:
            self._state = self._give_up
            return
        self._pass(match.end())
        self._begin(CallText(self._tools, match["name"]))
        yield from ()

    def _begin(self, call: Call) -> None:
        self._call = call
        self._begun = False
        self._state = self._in_call

    def _in_call(self) -> Iterator[str | CallPiece]:
        call = self._call
        assert call is not None
        fed, broken = 0, self._final and not self._text
        try:
            for char in self._text:
                fed += 1
                call.feed(char)
                if call.done:
                    break
        except NotACall:
            broken = True
        self._text = self._text[fed:]
        if call.announced and (call.done or self._eager):
            yield from self._announce(call, broken and fed > 0)
        if broken:
            self._state = self._give_up
            self._text = (call.rest() if self._begun else call.text()) + self._text
        elif call.done:
            self._state = self._ignore if self._single else self._after

    def _announce(self, call: Call, broken: bool) -> Iterator[CallPiece]:
        arguments = call.take(broken)
        if not self._begun:
            self._begun = True
            self._called = True
            self._seen = self._space = ""
            yield CallPiece(call.name, arguments)
        elif arguments:
            yield CallPiece(None, arguments)

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
        mark = self._style.after_arguments.strip()
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
