"""The ranks that share a model, each on a GPU of its own, as one of them sees the others."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """One rank's view of a group on devices. All ranks make the same calls in the same order.

    What is exchanged is bytes: contiguous uint8 tensors ``[n]`` on the rank's device, of which all
    ranks have equally many. A call is queued on the current stream like any launch, waits for
    nothing on the host and may be captured in a CUDA graph. Raises RuntimeError where another rank
    has failed, then or when the device is waited for.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    def all_gather(self, out: Tensor, part: Tensor) -> None:
        """Put every rank's ``part`` into ``out`` ``[world * n]``, in the order of ranks."""
        ...

    def gather_to_first(self, out: Tensor | None, part: Tensor) -> None:
        """Do what :meth:`all_gather` does for rank 0; ``out`` is None at others, which need not
        wait."""
        ...

    def same_rows(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers that any rank has given, ascending: once, as the group is made ready.

        What each rank would choose for itself depends on its part of the model, and what all run
        must not."""
        ...

    def close(self) -> None:
        """Leave the group. Calls after the first do nothing."""
        ...
