"""The last tokens that a sequence's penalties look at, on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.sampling.memory import device_copy

_NONE = -1
"""Where no token is yet."""
_FIRST_ROOM = 64


class RecentTokens:
    """A ring of the last ``last`` tokens of a sequence, in four bytes each.

    ``counts`` int32 ``[vocab]`` are twice the occurrences among them. Tokens come by
    :meth:`take`, or from the kernel ``count_tokens``, which is given :meth:`place` of the next.
    """

    def __init__(self, last: int, counts: Tensor) -> None:
        self._last = last
        self._counts = counts
        self._ring = torch.empty(0, dtype=torch.int32, device=counts.device)

    def take(self, token_ids: list[int], first: int) -> None:
        """Queue that these tokens come, in their order, ``first`` after as many others."""
        self._make_room(first + len(token_ids))
        kept = token_ids[-self._last :]
        first += len(token_ids) - len(kept)
        at = np.arange(first, first + len(kept)) % len(self._ring)
        places = device_copy(at, self._ring.device)
        ids = device_copy(np.array(kept, np.int64), self._ring.device)
        # More tokens than there is room for push all others out.
        leaving = self._ring[places]
        there = (leaving != _NONE).to(torch.int32)
        self._counts.index_add_(0, leaving.clamp(min=0), there * -2)
        self._counts.index_add_(0, ids, torch.full_like(ids, 2, dtype=torch.int32))
        self._ring[places] = ids.to(torch.int32)

    def place(self, position: int) -> int:
        """Queue room for the token after ``position`` others, and return its address: there is
        the one that leaves for it, or -1."""
        self._make_room(position + 1)
        return self._ring.data_ptr() + position % len(self._ring) * self._ring.element_size()

    def _make_room(self, count: int) -> None:
        """Grow the ring for ``count`` tokens of the sequence, up to the last. As long as it grows,
        none has left: it begins with the first token."""
        had, needed = len(self._ring), min(count, self._last)
        if needed <= had:
            return
        size = min(self._last, max(needed, 2 * had, _FIRST_ROOM))
        more = self._ring.new_full((size - had,), _NONE)
        self._ring = torch.cat([self._ring, more])
