"""The reasoning at the beginning of an answer."""

from __future__ import annotations

from enum import Enum, auto

from penstock.parsing.styles import ReasoningStyle


class _At(Enum):
    BEGINNING = auto()
    REASONING = auto()
    GAP = auto()  # between the reasoning and the content
    CONTENT = auto()


class ReasoningScanner:
    """Splits text into reasoning and content. Space around the reasoning belongs to neither."""

    def __init__(self, style: ReasoningStyle, inside: bool) -> None:
        self._style = style
        self._at = _At.REASONING if inside else _At.BEGINNING
        self._reasoned = False
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(new reasoning, new content)"""
        if self._at is _At.CONTENT:
            return "", text
        text = self._held + text
        self._held = ""
        reasoning = ""
        if self._at is _At.BEGINNING:
            opening, begun = self._style.opening, text.lstrip()
            if begun.startswith(opening):
                self._at = _At.REASONING
                text = begun[len(opening) :]
            elif opening.startswith(begun):
                self._held = text
                return "", ""
            else:
                self._at = _At.CONTENT
        if self._at is _At.REASONING:
            reasoning, closing, text = text.partition(self._style.closing)
            if not closing:
                reasoning, self._held = _without(reasoning, self._style.closing)
            else:
                reasoning = reasoning.rstrip()
                self._at = _At.GAP
            if not self._reasoned:
                reasoning = reasoning.lstrip()
                self._reasoned = bool(reasoning)
        if self._at is _At.GAP:
            text = text.lstrip()
            if text:
                self._at = _At.CONTENT
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        """What was held back: the beginning of a closing that never came, or of an opening."""
        held, self._held = self._held, ""
        if self._at is not _At.REASONING:
            return "", held
        held = held if self._reasoned else held.lstrip()
        return held.rstrip(), ""


def beginning_at_end(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that ``marker`` begins with, but is not all."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


def _without(text: str, closing: str) -> tuple[str, str]:
    """``text`` in two: what is reasoning for sure, and what may be space before the closing."""
    sure = text[: len(text) - beginning_at_end(text, closing)].rstrip()
    return sure, text[len(sure) :]
