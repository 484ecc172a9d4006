"""The profile in force, in memory that outlives the server's process."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from penstock.profile import MOST_BYTES, Profile

_SIZE: Final = 8
"""Bytes of the number before a document, which says how long it is."""
_SLOT: Final = _SIZE + 2 * MOST_BYTES
"""Room for any document, which may grow a little as it is written anew. It costs what is used."""


class KeptProfile:
    """What one life of the server leaves to the next: the profile that was put in force last.

    Made before the server's process is forked, so that all of its lives have the same memory. There
    are two slots, and a byte that says which holds: a process that is killed while it writes leaves
    what held before.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("penstock-profile")

    def read(self) -> Profile | None:
        """The profile that was kept last; None if there is none. Raises OSError."""
        slot = os.pread(self._fd, 1, 0)
        if not slot:
            return None
        at = 1 + slot[0] * _SLOT
        length = int.from_bytes(os.pread(self._fd, _SIZE, at))
        return Profile.decoded(os.pread(self._fd, length, at + _SIZE), "the profile in force")

    def keep(self, profile: Profile) -> None:
        """Raises OSError."""
        slot = os.pread(self._fd, 1, 0)
        free = 1 - slot[0] if slot else 0
        data = msgspec.json.encode(profile)
        self._write(len(data).to_bytes(_SIZE) + data, 1 + free * _SLOT)
        self._write(bytes([free]), 0)

    def _write(self, data: bytes, at: int) -> None:
        while data:
            written = os.pwrite(self._fd, data, at)
            data, at = data[written:], at + written
