"""A limit on the memory that the request bodies being read take, over all requests together."""

from __future__ import annotations

from penstock.server.errors import ApiError

BODIES_BYTES = 256 << 20
ALWAYS_BYTES = 64 << 10
"""Bytes of each body that are always accepted, however much memory other bodies take."""


class BodyMemory:
    """The bytes that bodies of one server may take while they are read and decoded.

    Each request has a :class:`Share`, which gives back what it took when it is left.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self.taken = 0

    def share(self) -> Share:
        return Share(self)

    @property
    def left(self) -> int:
        return self._total - self.taken


class Share:
    """The memory that one body holds, from its first byte until the share is left."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._bytes = 0

    def __enter__(self) -> Share:
        return self

    def __exit__(self, *error: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        self._memory.taken -= self._bytes
        self._bytes = 0

    def check(self, more: int) -> None:
        """Raise ApiError 503 unless ``more`` bytes may be taken."""
        if self._bytes + more > ALWAYS_BYTES and more > self._memory.left:
            raise ApiError(
                503,
                "other requests with long bodies are being read, and there is no room for this one "
                "now; send it again later",
                type="server_error",
                code="bodies_full",
                close=True,
            )

    def take(self, count: int) -> None:
        """Raises ApiError 503 as :meth:`check` does."""
        self.check(count)
        self._bytes += count
        self._memory.taken += count
