"""Which blocks are on their way into the pool."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cache.prefix import Key
from penstock.engine.tiers.fetch import Awaited, Fetch
from penstock.kvstore.pieces import Wanted

_Place = tuple[Key, int]
"""A block's key and group of layers; of a piece, those of its first block."""


class Coming:
    """The pieces that are being read, by the keys of their blocks.

    So what many sequences begin with, such as one document that is asked many things at once, is
    read for the first of them alone, and the others wait for it. They wait for pieces and not for
    the whole :class:`Fetch` that these are of, which may be of a much longer prefix.
    """

    def __init__(self) -> None:
        self._by_block: dict[_Place, Awaited] = {}
        self._by_fetch: dict[Fetch, dict[_Place, Awaited]] = {}

    def __len__(self) -> int:
        """How many blocks are on their way."""
        return len(self._by_block)

    def of(self, key: Key, group: int) -> Awaited | None:
        """The piece that brings a block, if any does."""
        piece = self._by_block.get((key, group))
        return piece if piece is not None and piece.is_coming else None

    def add(self, fetch: Fetch, wanted: Iterable[Wanted]) -> None:
        """These pieces will be read for a sequence."""
        pieces = self._by_fetch[fetch] = {}
        for each in wanted:
            pieces[_place(each)] = piece = Awaited(fetch, each)
            for key in each.keys:
                self._by_block[key, each.group] = piece

    def has_arrived(self, fetch: Fetch, wanted: Wanted) -> None:
        """A store has read a piece."""
        piece = self._piece(fetch, wanted)
        if piece is not None:
            piece.has_arrived = True

    def is_there(self, fetch: Fetch, wanted: Wanted) -> None:
        """A piece is in the cache's memory."""
        piece = self._piece(fetch, wanted)
        if piece is not None:
            piece.is_there = True
            self._forget(piece)

    def drop(self, fetch: Fetch) -> None:
        """Nothing more is read for a sequence."""
        for piece in self._by_fetch.pop(fetch, {}).values():
            self._forget(piece)

    def _piece(self, fetch: Fetch, wanted: Wanted) -> Awaited | None:
        """None: the fetch was dropped."""
        return self._by_fetch.get(fetch, {}).get(_place(wanted))

    def _forget(self, piece: Awaited) -> None:
        for key in piece.wanted.keys:
            place = key, piece.wanted.group
            if self._by_block.get(place) is piece:  # else it is read anew for another one
                del self._by_block[place]


def _place(wanted: Wanted) -> _Place:
    return wanted.keys[0], wanted.group
