"""A trace played several times, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from penstock.bench.load.turn import Conversation, Piece, Turn


def repeated(conversations: Sequence[Conversation], times: int) -> Iterator[Conversation]:
    """The conversations so many times: each time behind the last, after the mean pause between two,
    and with texts of its own, so that nothing of one time is in the caches of the next."""
    yield from conversations
    last = max((each.at_s or 0.0 for each in conversations), default=0.0)
    period = last * len(conversations) / max(len(conversations) - 1, 1)
    for time in range(1, times):
        for each in conversations:
            yield Conversation(
                f"{each.name}, time {time + 1}",
                tuple(_renamed(turn, time) for turn in each.turns),
                None if each.at_s is None else each.at_s + time * period,
            )


def _renamed(turn: Turn, time: int) -> Turn:
    content = tuple(
        part if isinstance(part, str) else Piece((*part.key, -time), part.tokens)
        for part in turn.content
    )
    return replace(turn, content=content)
