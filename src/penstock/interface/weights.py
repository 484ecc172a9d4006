"""Weights as they are given to a backend, and as an executor keeps them packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np


class QuantizedTensor(Protocol):
    """A matrix ``[n, k]`` that is quantized already, such as ``quant.GroupTensor``."""

    @property
    def scheme(self) -> object:
        """What it is quantized to: the ``scheme`` of the plan's op that reads it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]: ...


WeightValue = np.ndarray | QuantizedTensor


class WeightSource(Protocol):
    """Canonical weights by name, read when asked for."""

    def get(self, name: str) -> WeightValue:
        """The array in the checkpoint's dtype (float32, float16 or ml_dtypes.bfloat16), read-only;
        or the matrix as it is quantized in the checkpoint, where the plan's source says so.

        Usually a view of a memory-mapped file; do not hold on to it after packing.
        """
        ...

    def member(self, name: str, index: int) -> WeightValue:
        """Matrix ``index`` of a stack ``[number, n, k]``, such as a layer's experts, as :meth:`get`
        has it, without reading the others."""
        ...

    def names(self) -> Iterable[str]: ...


@runtime_checkable
class RowSource(Protocol):
    """A :class:`WeightSource` that can read a large matrix piece by piece."""

    def has_rows_apart(self, name: str) -> bool:
        """Whether rows of this weight can be read without reading or converting the others."""
        ...

    def rows(self, name: str, first: int, end: int) -> WeightValue:
        """Rows ``first`` to ``end`` of such a matrix, as :meth:`WeightSource.get` has them."""
        ...


class Place(NamedTuple):
    """The position of a region of packed weights in a file."""

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
    """What the format of packed weights depends on, besides the weights and the plan."""

    isa: str
    """Name of the native module's instruction set."""
    layout: int
    """Number of the layout in that module; see ``csrc/packed_layout.h``."""
