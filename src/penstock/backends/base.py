"""What a backend gives the engine: an executor bound to one plan, one set of weights, one cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from penstock.engine.step import StepInput, StepResult
from penstock.sampling.sampler import Sampler


@dataclass(frozen=True)
class Limits:
    """How large a step may be; an executor allocates for these once, when it is bound."""

    num_blocks: int
    """KV blocks."""
    max_tokens: int
    """Token rows of a step."""
    max_logit_rows: int
    """Rows with logits in a step."""
    max_sequences: int
    threads: int
    cpus: tuple[int, ...] = ()
    """The CPU of each thread; empty: where the system puts them."""
    deterministic: bool = True
    """No row's result depends on other rows. Only the cuda backend can do without."""


class WeightSource(Protocol):
    """Canonical weights by name, read when asked for."""

    def get(self, name: str) -> np.ndarray:
        """The array in the checkpoint's dtype (float32, float16 or ml_dtypes.bfloat16), read-only.

        Usually a view of a memory-mapped file; do not hold on to it after packing.
        """
        ...

    def names(self) -> Iterable[str]: ...


class Place(NamedTuple):
    """Where in a file a region of packed weights lies."""

    region: int
    offset: int  # bytes


class PackedRegions(Protocol):
    """An executor's weights as regions of bytes that only its backend understands.

    What they hold depends on the weights, the plan's products and :class:`Packing`, and on nothing
    else: not on limits, threads or the machine's load.
    """

    @property
    def names(self) -> Sequence[str]:
        """The weights of each region, joined by ``+``: for messages."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each region."""
        ...

    def read(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        """Fill these regions from the file, on all threads.

        Returns the CRC-32C of each ``chunk`` bytes of each, the last chunk shorter. Raises OSError,
        with ENODATA where the file ends early; regions are then partly filled.
        """
        ...

    def write(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        """Write these regions into the file and return their checksums, as :meth:`read` does."""
        ...


@runtime_checkable
class PackedWeights(Protocol):
    """Weights that an executor of the same plan has packed before: restored, never read singly."""

    def restore(self, regions: PackedRegions) -> None:
        """Fill every region; raises ArtifactError where that cannot be, or bytes are damaged."""
        ...


@dataclass(frozen=True)
class Packing:
    """What the form of packed weights depends on, beside the weights and the plan."""

    isa: str
    """The native variant."""
    layout: int
    """Its number of the layout; ``csrc/packed_layout.h``."""


class Executor(Protocol):
    """Runs steps. Created by a backend's ``bind``; not thread-safe.

    The cache's memory is part of the executor; block ids index it from 0 to ``num_blocks - 1``.
    """

    num_blocks: int

    @property
    def packed(self) -> PackedRegions | None:
        """The weights as they lie in memory; None where the backend packs nothing."""
        ...

    def run(self, step: StepInput) -> StepResult:
        """Run one step and return its logits. Views in the result live until the next call."""
        ...

    def sampler(self) -> Sampler[Any]:
        """What chooses tokens from this executor's logits."""
        ...

    def close(self) -> None:
        """Release threads and memory; the executor cannot run afterwards."""
        ...
