"""Low-rank adapters (LoRA) as executors take them: by the names of a plan's matrices.

A plan that serves adapters has a fixed number of *slots* (``AdapterSlots``). The weights of an
adapter are written into a slot between two steps, and a step says of each of its sequences which
slot it uses (``StepInput.adapters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:  # schedulers know slots, and no arrays
    from numpy.typing import NDArray

MAX_RANK: Final = 256
"""The largest rank of an adapter: what kernels keep of a row is at most so many numbers."""

NO_ADAPTER: Final = -1
"""The slot of a sequence that uses none."""


@dataclass(frozen=True)
class AdapterSlots:
    """How many adapters a plan has room for, and of which rank at most."""

    count: int
    rank: int


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to a product ``x @ W.T``: ``scale * (x @ down.T) @ up.T``."""

    down: NDArray[Any]
    """``[rank, k]``, floats of any type."""
    up: NDArray[Any]
    """``[n, rank]``."""
    scale: float

    @property
    def rank(self) -> int:
        return len(self.down)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter of one model: what it adds to some of the plan's matrices, by their names."""

    digest: str
    """What it is known by: a digest of its weights and of what they are multiplied by."""
    rank: int
    """The largest of its matrices."""
    matrices: Mapping[str, LowRank] = field(repr=False)

    @property
    def num_bytes(self) -> int:
        return sum(each.down.nbytes + each.up.nbytes for each in self.matrices.values())


class AdapterMemory(Protocol):
    """The slots of an executor. Nothing here is called while a step is submitted."""

    def write(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter into a slot, in the place of what was there: steps that were submitted
        before still read that, also where they have not run yet.

        Its matrices are the plan's, in their shapes, and of at most the plan's rank.
        """
        ...
