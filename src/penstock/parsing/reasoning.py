"""The reasoning at the beginning of an answer."""

from __future__ import annotations

from enum import Enum, auto

from penstock.parsing.style import ReasoningStyle, Start


class _At(Enum):
    BEGINNING = auto()
    REASONING = auto()
    GAP = auto()  # between the reasoning and the content
    ANSWER = auto()  # content between marks
    CONTENT = auto()


class ReasoningScanner:
    """Splits text into reasoning and content. Space around the reasoning belongs to neither, nor do
    the marks that a style has around the content, with the space there."""

    def __init__(self, style: ReasoningStyle, start: Start) -> None:
        self._style = style
        self._at = _At.REASONING if start is Start.REASONING else _At.BEGINNING
        self._reasoning = _Enclosed(style.closing)
        self._answer = _Enclosed("" if style.answer is None else style.answer[1])
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(new reasoning, new content)"""
        text, self._held = self._held + text, ""
        reasoning = ""
        if self._at is _At.BEGINNING:
            text = self._begin(text, self._style.opening, _At.REASONING)
        if self._at is _At.REASONING:
            reasoning, text = self._reasoning.push(text)
            if self._reasoning.closed:
                self._at = _At.GAP
        if self._at is _At.GAP:
            text = self._begin(text.lstrip(), "", _At.CONTENT)
        if self._at is _At.ANSWER:
            content, behind = self._answer.push(text)
            if not behind.strip():
                self._held = behind
                return reasoning, content
            self._at = _At.CONTENT
            return reasoning, content + behind
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """What was held back: the beginning of a closing that never came, or of an opening."""
        if self._at is _At.REASONING:
            return self._reasoning.finish(), ""
        if self._at is _At.ANSWER:
            return "", self._answer.finish()
        held, self._held = self._held, ""
        return "", held

    def _begin(self, text: str, opening: str, inside: _At) -> str:
        """The text behind a mark, if one of reasoning or of the answer follows; what may still
        become one is held back."""
        marks = {opening: inside} if opening else {}
        if self._style.answer is not None:
            marks[self._style.answer[0]] = _At.ANSWER
        begun = text.lstrip()
        for mark, at in marks.items():
            if begun.startswith(mark):
                self._at = at
                return begun[len(mark) :]
        if any(mark.startswith(begun) for mark in marks):
            self._held = text
            return ""
        if begun or self._at is _At.BEGINNING:
            self._at = _At.CONTENT
        return text


class _Enclosed:
    """The text up to ``closing``, without the space at its ends."""

    def __init__(self, closing: str) -> None:
        self.closed = False
        self._closing = closing
        self._begun = False
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(what is new of the text, what is behind the closing)"""
        if self.closed:
            return "", text
        text, self._held = self._held + text, ""
        inner, closing, behind = text.partition(self._closing)
        if closing:
            self.closed = True
            inner = inner.rstrip()
        else:
            sure = text[: len(text) - beginning_at_end(text, self._closing)].rstrip()
            inner, self._held = sure, text[len(sure) :]
        return self._begin(inner), behind

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._begin(held).rstrip()

    def _begin(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text


def beginning_at_end(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that ``marker`` begins with, but is not all."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
