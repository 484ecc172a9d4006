"""Compiled grammars, shared by requests that ask for the same one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from penstock.grammar.spec import GrammarSpec

Compiled = TypeVar("Compiled")


class GrammarCache(Generic[Compiled]):
    """A cache of the most recently used grammars, bounded in their number and in the total length
    of their texts. Not thread-safe."""

    def __init__(self, max_entries: int = 256, max_chars: int = 1 << 21) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._entries: OrderedDict[GrammarSpec, Compiled] = OrderedDict()
        self.num_chars = 0
        """The total length of the texts of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, spec: GrammarSpec) -> Compiled | None:
        """The entry, if there is one. It becomes the most recently used."""
        entry = self._entries.get(spec)
        if entry is not None:
            self._entries.move_to_end(spec)
        return entry

    def drop(self, spec: GrammarSpec) -> None:
        """Forget an entry, if there is one."""
        if self._entries.pop(spec, None) is not None:
            self.num_chars -= len(spec.text)

    def put(self, spec: GrammarSpec, entry: Compiled) -> None:
        """Keep an entry, and evict the least recently used ones beyond the bounds."""
        if spec not in self._entries:
            self.num_chars += len(spec.text)
        self._entries[spec] = entry
        self._entries.move_to_end(spec)
        while len(self._entries) > self._max_entries or self.num_chars > self._max_chars:
            gone, _ = self._entries.popitem(last=False)
            self.num_chars -= len(gone.text)
