"""An answer's text, in pieces of any size, taken apart into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.parsing.reasoning import ReasoningScanner
from penstock.parsing.styles import ReasoningStyle, ToolStyle
from penstock.parsing.tool_calls import CallPiece, ToolScanner


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

    ``tools`` are the schemas of the arguments of the functions that may be called, by their names.
    ``in_reasoning`` says that the prompt has ended with the opening of the reasoning. ``single``
    ends the answer with its first call.
    """

    def __init__(
        self,
        reasoning: ReasoningStyle | None,
        in_reasoning: bool,
        style: ToolStyle | None,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        eager: bool,
        single: bool = False,
    ) -> None:
        self._reasoning = None if reasoning is None else ReasoningScanner(reasoning, in_reasoning)
        self._tools = None if style is None else ToolScanner(style, tools, eager, single)
        self.num_calls = 0

    def push(self, text: str) -> AnswerDelta:
        delta = AnswerDelta()
        content = text
        if self._reasoning is not None:
            delta.reasoning, content = self._reasoning.push(text)
        if self._tools is None:
            delta.content = content
        elif content:
            self._add(delta, self._tools.push(content))
        return delta

    def finish(self) -> AnswerDelta:
        """What was held back because more text could have changed its meaning."""
        delta = AnswerDelta()
        content = ""
        if self._reasoning is not None:
            delta.reasoning, content = self._reasoning.finish()
        if self._tools is None:
            delta.content = content
        else:
            self._add(delta, [*self._tools.push(content), *self._tools.finish()])
        return delta

    def _add(self, delta: AnswerDelta, pieces: Iterable[str | CallPiece]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                delta.content += piece
                continue
            if piece.name is not None:
                self.num_calls += 1
            delta.add_call(CallDelta(self.num_calls - 1, piece.name, piece.arguments))
