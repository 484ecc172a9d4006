"""Puts weights into the native executor: reads and packs them, or copies packed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import Bytes, NativeExecutor
from penstock.interface.weights import Place, WeightSource, WeightValue
from penstock.models.spec import DType
from penstock.plan.ops import WeightName

DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


class Fill(NamedTuple):
    """The packing of one weight, or of one expert's matrix of a stack."""

    name: WeightName
    put: Callable[[WeightValue], None]
    expert: int | None = None

    def read(self, weights: WeightSource) -> WeightValue:
        if self.expert is None:
            return weights.get(self.name)
        return weights.member(self.name, self.expert)


def pack(fills: Sequence[Fill], weights: WeightSource) -> None:
    """Carry out ``fills`` in their order; raises what reading and packing raise.

    The next weight is read, converted or generated while one is packed, so that two are in memory
    at most.
    """
    with ThreadPoolExecutor(1, "penstock-weights") as reader:
        ahead = [reader.submit(fill.read, weights) for fill in fills[:1]]
        for fill, following in zip(fills, (*fills[1:], None), strict=True):
            array = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(following.read, weights))
            fill.put(array)


def as_bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class NativeRegions:
    """The packed weights of a native executor (``interface.weights.PackedRegions``)."""

    def __init__(self, native: NativeExecutor, names: tuple[str, ...]) -> None:
        self._native = native
        self.names = names
        self.sizes = tuple(native.region_bytes)
        assert len(names) == len(self.sizes)

    def read(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.read_regions(fd, list(places), chunk)

    def write(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.write_regions(fd, list(places), chunk)
