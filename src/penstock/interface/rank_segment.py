"""Memory that the processes of a group of ranks share, in which native executors exchange columns.

``csrc/rank_group.h`` says what lies where. Python makes it, and gives the group up in it.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

_LINE: Final = 64
_PAGE: Final = 4096
_LINES: Final = 2
"""Cache lines before those of the ranks. The first begins with the word that is not 0 once the
group has been given up."""


def segment_bytes(world: int, slot_bytes: int) -> int:
    """Return the bytes of a segment of so many ranks, whose slots hold ``slot_bytes``."""
    return _paged((_LINES + world) * _LINE) + 2 * world * _paged(slot_bytes)


class RankSegment:
    """A segment of zeros, without a name: who is given :attr:`fd` can map it, and nobody else.

    Pages that no step uses take no memory. Raises OSError where the system gives none.
    """

    def __init__(self, world: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        """Most bytes of what a rank has to give in one gather."""
        self.fd = os.memfd_create("penstock-ranks", os.MFD_CLOEXEC)
        """The file descriptor, which is not inherited unless it is passed on."""
        try:
            os.ftruncate(self.fd, segment_bytes(world, slot_bytes))
            self._words = mmap.mmap(self.fd, _PAGE)
        except BaseException:
            os.close(self.fd)
            raise
        self._closed = False

    def give_up(self) -> None:
        """Have every rank that waits for others, or will, fail instead. From any thread."""
        if not self._closed:
            self._words[0] = 1

    def close(self) -> None:
        """Close our end; mappings of executors stay. Calls after the first do nothing."""
        if not self._closed:
            self._closed = True
            self._words.close()
            os.close(self.fd)


def _paged(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
