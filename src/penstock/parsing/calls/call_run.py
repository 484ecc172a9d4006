"""One call in a text that comes in pieces."""

from __future__ import annotations

from enum import Enum, auto

from penstock.parsing.calls.call_reader import CallReader, NotACall
from penstock.parsing.pieces import CallPiece


class Outcome(Enum):
    GOES_ON = auto()
    WHOLE = auto()
    BROKEN = auto()


class CallRun:
    """Feeds a reader. With ``eager`` a call is announced when its name is known and its arguments
    have begun, and otherwise when it is whole."""

    def __init__(self, call: CallReader, eager: bool) -> None:
        self._call = call
        self._eager = eager
        self.begun = False
        """Whether the call was announced."""

    def take(self, text: str, final: bool) -> tuple[CallPiece | None, str, Outcome]:
        """What is new of the call, the text that is not its, and what became of it. ``final`` says
        that no more will come."""
        call = self._call
        fed, broken = 0, final and not text
        try:
            for char in text:
                fed += 1
                call.feed(char)
                if call.done:
                    break
        except NotACall:
            broken = True
        rest, piece = text[fed:], None
        if call.announced and (call.done or self._eager):
            piece = self._piece(call.take(broken and fed > 0))
        if broken:
            return piece, (call.rest() if self.begun else call.text()) + rest, Outcome.BROKEN
        return piece, rest, Outcome.WHOLE if call.done else Outcome.GOES_ON

    def _piece(self, arguments: str) -> CallPiece | None:
        if self.begun:
            return CallPiece(None, arguments) if arguments else None
        self.begun = True
        return CallPiece(self._call.name, arguments)
