"""Arrays as the bytes that the native executor takes, and its packed weights as bytes of files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import Bytes, NativeExecutor
from penstock.interface.weights import Place
from penstock.models.spec import DType

DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


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
