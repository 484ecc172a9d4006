"""What an answer is taken apart into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thought:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True)
class CallPiece:
    """A call begins (``name``), or its arguments go on."""

    name: str | None
    arguments: str


Piece = str | Thought | CallPiece
"""Text is more of the content. No piece is empty."""
