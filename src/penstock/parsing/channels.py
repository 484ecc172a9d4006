"""Answers in messages for channels, in pieces of any size, taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import Final

from penstock.parsing.calls.call_reader import MAX_NAME, Tools
from penstock.parsing.calls.call_run import CallRun, Outcome
from penstock.parsing.calls.json_call import ArgumentsReader
from penstock.parsing.calls.json_scan import SPACE
from penstock.parsing.forms import ChannelForm
from penstock.parsing.pieces import Piece, Thought
from penstock.parsing.reasoning import beginning_at_end
from penstock.parsing.style import Start

_MAX_HEADER: Final = 4 * MAX_NAME
_BETWEEN: Final = "\n\n"
"""What stands between the texts of two messages of one kind."""

Step = Generator[Piece, None, bool]
"""Takes something from the text; returns whether to go on, and not to wait for more text."""


class ChannelScanner:
    """One pass over an answer's text.

    A message to a function is a call, others are reasoning or content by their channels; without
    ``shows_reasoning`` all of them are content. Headers and marks are left out. A message to anyone
    else, and one that is no call after all, keeps its header; text that no header belongs to is
    content.
    """

    def __init__(
        self,
        form: ChannelForm,
        shows_reasoning: bool,
        start: Start,
        tools: Tools,
        eager: bool,
        single: bool,
    ) -> None:
        self._form = form
        self._shows_reasoning = shows_reasoning
        self._tools = tools
        self._eager = eager
        self._single = single
        self._text = ""  # not yet understood
        self._final = False
        self._state: Callable[[], Step] = self._header if start is Start.BEGINNING else self._body
        self._thinks = start is Start.REASONING and shows_reasoning  # the message is reasoning
        self._said = {True: False, False: False}  # reasoning, content
        self._begun = start is not Start.BEGINNING  # the message has shown text
        self._plain = 0  # characters of the text in which marks mean nothing
        self._raw = ""  # header of the call that is being read
        self._run: CallRun | None = None

    def push(self, text: str) -> Iterator[Piece]:
        self._text += text
        while (yield from self._state()):
            pass

    def finish(self) -> Iterator[Piece]:
        self._final = True
        yield from self.push("")

    # States.

    def _header(self) -> Step:
        form = self._form
        header, message, behind = self._text.partition(form.message)
        marks = form.start, form.channel
        if not self._may_be_header(header, whole=bool(message)):
            space = len(header) - len(header.lstrip())
            mark = next((each for each in marks if header.startswith(each, space)), "")
            self._begin(False, space + len(mark) if mark else 0)
            return True
        if message:
            match = _header(form).fullmatch(" ".join(header.split()))
            self._text, self._raw = behind, header + message
            if match is None:
                self._begin_with(False, self._raw)
            else:
                self._open(match["channel"], match["to"] or match["to_then"])
            return True
        if self._final:
            if header.strip() and not header.lstrip().startswith(marks):
                yield from self._show(header)
            self._text = ""
        return False

    def _open(self, channel: str | None, receiver: str | None) -> None:
        """A message begins."""
        thinks = channel == self._form.reasoning
        name = (receiver or "").removeprefix(self._form.namespace)
        if receiver is None:
            self._begin(thinks)
        elif name in self._tools:
            self._run = CallRun(ArgumentsReader(name), self._eager)
            self._state = self._before_call
        else:
            self._begin_with(thinks, self._raw)

    def _begin(self, thinks: bool, plain: int = 0) -> None:
        """Text begins, in whose first ``plain`` characters marks mean nothing."""
        self._thinks = thinks and self._shows_reasoning
        self._begun = False
        self._plain = plain
        self._state = self._body

    def _begin_with(self, thinks: bool, header: str) -> None:
        """Text begins, and what looked like a header belongs to it."""
        self._text = header + self._text
        self._begin(thinks, len(header))

    def _body(self) -> Step:
        form = self._form
        ends = (form.end, form.call, form.finish, form.start, form.channel)
        plain = min(self._plain, len(self._text))
        found = [(at, mark) for mark in ends if (at := self._text.find(mark, plain)) >= 0]
        if found:
            at, mark = min(found)
            yield from self._show(self._text[:at])
            opens = mark in (form.start, form.channel)
            self._text = self._text[at if opens else at + len(mark) :]
            self._state = self._header
            return True
        held = 0
        if not self._final:
            held = max(beginning_at_end(self._text[plain:], mark) for mark in ends)
        end = len(self._text) - held
        shown, self._text = self._text[:end], self._text[end:]
        self._plain = max(self._plain - end, 0)
        yield from self._show(shown)
        return False

    def _before_call(self) -> Step:
        yield from ()
        self._text = self._text.lstrip(SPACE)
        if not self._text and not self._final:
            return False
        self._state = self._call
        return True

    def _call(self) -> Step:
        assert self._run is not None
        piece, self._text, outcome = self._run.take(self._text, self._final)
        if piece is not None:
            yield piece
        if outcome is Outcome.GOES_ON:
            return False
        if outcome is Outcome.WHOLE:
            self._state = self._ended if self._single else self._after_call
        elif self._run.begun:
            self._begin(False)
        else:
            self._begin_with(False, self._raw)
        return True

    def _after_call(self) -> Step:
        """Reads the end of a call, if there is one."""
        yield from ()
        form = self._form
        self._text = self._text.lstrip(SPACE)
        for mark in (form.call, form.end, form.finish):
            if self._text.startswith(mark):
                self._text = self._text[len(mark) :]
                self._state = self._header
                return True
            if mark.startswith(self._text) and not self._final:
                return False
        self._state = self._header
        return True

    def _ended(self) -> Step:
        """The answer has ended."""
        yield from ()
        self._text = ""
        return False

    def _show(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        if not self._begun and self._said[self._thinks]:
            text = _BETWEEN + text
        self._begun = self._said[self._thinks] = True
        yield Thought(text) if self._thinks else text

    def _may_be_header(self, text: str, whole: bool) -> bool:
        """Whether the text may become a header, or be one that is ``whole``. If it may not, nor may
        any that begins with it."""
        form, begun = self._form, text.lstrip()
        marks = form.start, form.channel, form.message, form.constrain
        openings = (form.start, form.channel, form.message, form.author, "to=")
        if not begun.startswith(openings) and not any(each.startswith(begun) for each in openings):
            return False
        if not whole:
            begun = begun[: len(begun) - max(beginning_at_end(begun, mark) for mark in marks)]
        plain = begun
        for mark in marks:
            plain = plain.replace(mark, " ")
        return len(begun) <= _MAX_HEADER and re.fullmatch(r"[\w.=\s-]*", plain) is not None


@cache
def _header(form: ChannelForm) -> re.Pattern[str]:
    """Matches all headers of the model's messages, up to the mark behind them, with single
    spaces."""
    start, channel, constrain = map(re.escape, (form.start, form.channel, form.constrain))
    name = r"[^\s<]+"
    begins = rf"(?:{start})? ?(?:{re.escape(form.author)})?"
    to = rf"(?: ?to=(?P<to>{name})(?: ?{constrain} ?\w*)?)?"
    channel = rf"(?: ?{channel} ?(?P<channel>\w+)(?: ?to=(?P<to_then>{name}))?"
    return re.compile(rf"{begins}{to}{channel}(?: ?{constrain} ?\w*| \w+)?)?")
