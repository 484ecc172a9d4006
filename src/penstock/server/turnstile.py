"""Lets requests through to the engine, and holds them while engines are exchanged."""

from __future__ import annotations

import asyncio
import time

from penstock.frontend.open_sequences import OpenSequences, Place
from penstock.interface.messages import Tenant


class Entry:
    """One request at the turnstile: held before it, inside, or gone. To be closed at its end."""

    def __init__(self, turnstile: Turnstile, place: Place | None = None) -> None:
        self.place = place
        """What it has among the open sequences, if it was held."""
        self.held_s = 0.0
        """Seconds for which it was held, once it no longer is."""
        self._came_at = time.monotonic()
        self._turnstile = turnstile
        self._inside = False

    def let_in(self) -> None:
        self._inside = True
        self._turnstile.came(1)

    def held(self) -> float:
        """End its time of being held; returns the seconds."""
        self.held_s = time.monotonic() - self._came_at
        return self.held_s

    def close(self) -> None:
        """Leave. Safe to repeat."""
        if self.place is not None:
            self.place.close()
        if self._inside:
            self._inside = False
            self._turnstile.came(-1)


class Turnstile:
    """Counts the requests that may use the engine, each from its preparation to its end, and while
    it is closed holds new ones, in the order in which they came.

    Those that are held have places among the open sequences, so that their number has the usual
    limit. Belongs to one event loop.
    """

    def __init__(self, sequences: OpenSequences) -> None:
        self._sequences = sequences
        self._inside = 0
        self._emptied = asyncio.Event()
        self._held: dict[Entry, asyncio.Future[None]] = {}
        self._closed_at: float | None = None
        self.total_held = 0
        """Requests that were held since it was closed last, those included that have left."""
        self.longest_held_s = 0.0
        """The longest time of these."""

    @property
    def is_open(self) -> bool:
        return self._closed_at is None

    @property
    def closed_s(self) -> float:
        """Seconds for which it has been closed; 0 while it is open."""
        return 0.0 if self._closed_at is None else time.monotonic() - self._closed_at

    @property
    def waiting(self) -> int:
        """Requests that are held now."""
        return len(self._held)

    def enter(self) -> Entry:
        """Let a request in, which must be open."""
        assert self.is_open
        entry = Entry(self)
        entry.let_in()
        return entry

    async def hold(self, tenant: Tenant, sequences: int) -> Entry:
        """Hold a request of the tenant, which asks for so many sequences, and then let it in: at
        once if it was opened since the caller looked.

        Raises OverloadedError if too many are open and held. What it asks for beyond the limit has
        no place, and is refused later, as usual.
        """
        limit = self._sequences.limit
        places = sequences if limit is None else min(sequences, limit)
        entry = Entry(self, Place(self._sequences, tenant, places))
        if self.is_open:
            entry.let_in()
            return entry
        self.total_held += 1
        opened = self._held[entry] = asyncio.get_running_loop().create_future()
        try:
            await opened
        except asyncio.CancelledError:
            if self._held.pop(entry, None) is not None:
                self._note(entry)
            entry.close()
            raise
        return entry

    def close(self) -> None:
        """Hold the requests that come from now on."""
        if self.is_open:
            self._closed_at = time.monotonic()
            self.total_held, self.longest_held_s = 0, 0.0

    def open(self) -> None:
        """Let in those that are held, all at once: none of those that come later is before them."""
        self._closed_at = None
        held, self._held = self._held, {}
        for entry, opened in held.items():
            self._note(entry)
            if not opened.done():  # else its client leaves in this moment
                entry.let_in()
                opened.set_result(None)

    async def emptied(self) -> None:
        """Return once no request is inside, without letting anything happen in between."""
        while self._inside:
            self._emptied.clear()
            await self._emptied.wait()

    def came(self, entries: int) -> None:
        """Count entries that came inside, or left if the number is negative."""
        self._inside += entries
        if not self._inside:
            self._emptied.set()

    def _note(self, entry: Entry) -> None:
        self.longest_held_s = max(self.longest_held_s, entry.held())
