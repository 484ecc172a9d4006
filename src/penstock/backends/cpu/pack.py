"""Weights into the native executor: rounded and packed from a source, or moved as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.base import Place, WeightSource
from penstock.backends.cpu.interface import NativeExecutor
from penstock.plan.ops import WeightName
from penstock.quant import QuantizedTensor, QuantScheme, require_finite

_ELEMENTS: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float16): "float16",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
}


class Fill(NamedTuple):
    """One weight's way into the executor."""

    name: WeightName
    put: Callable[[NDArray[Any]], None]


def pack(fills: Sequence[Fill], weights: WeightSource) -> None:
    """Carry out ``fills`` in their order; raises what reading and packing raise.

    The next weight is read, converted or generated while one is packed, so that two are in memory
    at most.
    """
    with ThreadPoolExecutor(1, "penstock-weights") as reader:
        ahead = [reader.submit(weights.get, fill.name) for fill in fills[:1]]
        for fill, following in zip(fills, (*fills[1:], None), strict=True):
            array = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(weights.get, following.name))
            fill.put(array)


def round_weights(
    native: NativeExecutor, matrix: NDArray[Any], scheme: QuantScheme, name: str
) -> QuantizedTensor:
    """As ``quant.quantize``, bit by bit, on the executor's threads."""
    if matrix.dtype not in _ELEMENTS:
        matrix = matrix.astype(np.float32)
    n, k = matrix.shape
    codes = np.empty((n, k), np.int8)
    scales = np.empty((n, scheme.groups(k)), np.float32)
    rows = np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)
    native.round_rows(
        _ELEMENTS[matrix.dtype], rows, scheme.bits, scheme.group_size or 0, codes, scales
    )
    require_finite(scales, name)
    return QuantizedTensor(scheme, codes, scales)


class NativeRegions:
    """The packed weights of a native executor (``backends.base.PackedRegions``)."""

    def __init__(self, native: NativeExecutor, names: tuple[str, ...]) -> None:
        self._native = native
        self.names = names
        self.sizes = tuple(native.region_bytes)
        assert len(names) == len(self.sizes)

    def read(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.read_regions(fd, list(places), chunk)

    def write(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.write_regions(fd, list(places), chunk)
