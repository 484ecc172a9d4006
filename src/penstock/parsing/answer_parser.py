"""An answer's text, in pieces of any size, taken apart into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.parsing.calls.call_reader import Tools
from penstock.parsing.calls.scanner import ToolScanner
from penstock.parsing.channels import ChannelScanner
from penstock.parsing.forms import ChannelForm
from penstock.parsing.pieces import Piece, Thought
from penstock.parsing.reasoning import ReasoningScanner
from penstock.parsing.style import ReasoningStyle, Start, ToolStyle


@dataclass(frozen=True)
class CallDelta:
    """What is new of call ``index``; its name comes once, first."""

    index: int
    name: str | None
    arguments: str


@dataclass
class AnswerDelta:
    """What is new of an answer. The text of each part goes on where it stopped."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def add(self, later: AnswerDelta) -> None:
        """Join what comes after."""
        self.reasoning += later.reasoning
        self.content += later.content
        for call in later.calls:
            self.add_call(call)

    def add_call(self, call: CallDelta) -> None:
        if call.name is None and self.calls and self.calls[-1].index == call.index:
            last = self.calls.pop()
            call = CallDelta(last.index, last.name, last.arguments + call.arguments)
        self.calls.append(call)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)


class AnswerParser:
    """Where the text is cut does not matter: the joined deltas depend on the whole text alone.

    ``eager`` announces a call when its name is known and its arguments have begun, for streams.
    Should it break after that, it stays announced, with the arguments that it has. Otherwise
    only whole calls are calls, and a broken one is content like any other text.

    ``tools`` are the functions that may be called. ``start`` says what the prompt has ended in.
    ``single`` ends the answer with its first call.
    """

    def __init__(
        self,
        reasoning: ReasoningStyle | None,
        start: Start,
        style: ToolStyle | None,
        tools: Tools,
        *,
        eager: bool,
        single: bool = False,
    ) -> None:
        form = (reasoning and reasoning.form) or (style and style.form)
        self._scanner: _Scanner
        if isinstance(form, ChannelForm):
            reads = tools if style is not None else {}
            self._scanner = ChannelScanner(form, reasoning is not None, start, reads, eager, single)
        else:
            self._scanner = _Marked(
                None if reasoning is None else ReasoningScanner(reasoning, start),
                None if style is None else ToolScanner(style, tools, eager, single),
            )
        self.num_calls = 0

    def push(self, text: str) -> AnswerDelta:
        return self._delta(self._scanner.push(text))

    def finish(self) -> AnswerDelta:
        """What was held back because more text could have changed its meaning."""
        return self._delta(self._scanner.finish())

    def _delta(self, pieces: Iterable[Piece]) -> AnswerDelta:
        delta = AnswerDelta()
        for piece in pieces:
            if isinstance(piece, str):
                delta.content += piece
            elif isinstance(piece, Thought):
                delta.reasoning += piece.text
            else:
                if piece.name is not None:
                    self.num_calls += 1
                delta.add_call(CallDelta(self.num_calls - 1, piece.name, piece.arguments))
        return delta


class _Scanner(Protocol):
    """One pass over an answer's text."""

    def push(self, text: str) -> Iterator[Piece]: ...

    def finish(self) -> Iterator[Piece]: ...


class _Marked:
    """Reasoning, then content and calls, each between marks of its own."""

    def __init__(self, reasoning: ReasoningScanner | None, tools: ToolScanner | None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> Iterator[Piece]:
        thought, content = "", text
        if self._reasoning is not None:
            thought, content = self._reasoning.push(text)
        yield from self._pieces(thought, content)

    def finish(self) -> Iterator[Piece]:
        if self._reasoning is not None:
            yield from self._pieces(*self._reasoning.finish())
        if self._tools is not None:
            yield from self._tools.finish()

    def _pieces(self, thought: str, content: str) -> Iterator[Piece]:
        if thought:
            yield Thought(thought)
        if content and self._tools is not None:
            yield from self._tools.push(content)
        elif content:
            yield content
