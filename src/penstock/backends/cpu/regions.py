"""The packed weights of a native executor, as bytes of files."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.cpu.interface import NativeExecutor
from penstock.interface.weights import Place


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
