"""Compiled grammars, shared by requests that ask for the same one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from penstock.grammar.spec import GrammarSpec

Compiled = TypeVar("Compiled")


class GrammarCache(Generic[Compiled]):
    """The most recently used, in number and in size of their texts. Not thread-safe."""

    def __init__(self, max_entries: int = 256, max_chars: int = 1 << 21) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._entries: OrderedDict[GrammarSpec, Compiled] = OrderedDict()
        self.num_chars = 0
        """Of all texts."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, spec: GrammarSpec) -> Compiled | None:
        """The entry, which now is the last to go, if there is one."""
        entry = self._entries.get(spec)
        if entry is not None:
            self._entries.move_to_end(spec)
        return entry

    def put(self, spec: GrammarSpec, entry: Compiled) -> None:
        """Keep an entry; those that were not used for longest make room."""
        if spec not in self._entries:
            self.num_chars += len(spec.text)
        self._entries[spec] = entry
        self._entries.move_to_end(spec)
        while len(self._entries) > self._max_entries or self.num_chars > self._max_chars:
            gone, _ = self._entries.popitem(last=False)
            self.num_chars -= len(gone.text)
