"""A file that holds tensors: where each lies, and read-only views of the mapped bytes."""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.gguf.types import TYPES
from penstock.models.spec import DType
from penstock.quant.formats import GGUF_FORMATS
from penstock.regular_file import open_regular

NUMPY_DTYPES: Final[Mapping[DType, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
DECODED_BY_GGUF: Final = tuple(
    each.name for each in TYPES.values() if each.columns > 1 and each.name not in GGUF_FORMATS
)
"""Types of blocks that are read as floats alone, by the ``gguf`` package."""
_READABLE: Final[Mapping[str, DType]] = {
    **{"F32": "float32", "BF16": "bfloat16", "F16": "float16"},
    **dict.fromkeys((*GGUF_FORMATS, *DECODED_BY_GGUF), "float32"),
}
_INTEGERS: Final[Mapping[str, np.dtype[Any]]] = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}

_OF_ONE_BYTE: Final = frozenset(("U8", "I8", "F8_E4M3", "F8_E8M0"))
_WORTH_RELEASING: Final = 1 << 16
"""Bytes: the system maps as many at a time when a page is touched."""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """The position of a tensor in its file: bytes ``start`` to ``stop``. ``dtype`` is the type that
    the file gives, in the names of safetensors or, of blocks, of GGUF."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def element(self) -> DType | None:
        """The dtype in Penstock's words, of blocks that of their values; None if it is not one that
        models are served from."""
        return _READABLE.get(self.dtype)

    @property
    def in_blocks(self) -> bool:
        """Whether it is kept in blocks that kernels may read as they are."""
        return self.dtype in GGUF_FORMATS


class TensorFile:
    """Base. ``tensors`` are by name, each checked to lie within the ``size`` bytes of the file.

    The file is mapped at the first view and stays so until the last view is gone. The pages of a
    view count as memory of the process while there is an array of it, and no longer: what has been
    packed leaves only its place in the page cache.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._map: mmap.mmap | None = None
        self.tensors: Mapping[str, Tensor] = {}

    def view(self, name: str) -> NDArray[Any]:
        """The tensor's values in the file's dtype, read-only; zero-copy where aligned."""
        tensor = self.tensors[name]
        return self._view(tensor, self._element(tensor))

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, whatever they hold, read-only."""
        tensor = self.tensors[name]
        size = tensor.stop - tensor.start
        octets = Tensor(name, "U8", (size,), tensor.start, tensor.stop)
        return self._view(octets, np.dtype(np.uint8))

    def slices(self, name: str, runs: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Those slices of the first dimension, one run (first, end) after another, as :meth:`view`
        has them; of one run, a view."""
        tensor = self.tensors[name]
        parts = [self._view(_rows(tensor, *run), self._element(tensor)) for run in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def integers(self, name: str) -> NDArray[Any]:
        """View as :meth:`view` does a tensor of 32- or 64-bit integers."""
        tensor = self.tensors[name]
        if tensor.dtype not in _INTEGERS:
            self._fail(f"holds {name} as {tensor.dtype}; it must be I32 or I64")
        return self._view(tensor, _INTEGERS[tensor.dtype])

    def octets(self, name: str) -> NDArray[np.uint8]:
        """View as :meth:`view` does a tensor of bytes."""
        tensor = self.tensors[name]
        if tensor.dtype != "U8":
            self._fail(f"holds {name} as {tensor.dtype}; it must be U8")
        return self._view(tensor, np.dtype(np.uint8))

    def codes(self, name: str) -> NDArray[np.uint8]:
        """View as :meth:`view` does the bits of a tensor whose elements take a byte each."""
        tensor = self.tensors[name]
        if tensor.dtype not in _OF_ONE_BYTE:
            self._fail(f"holds {name} as {tensor.dtype}; its elements must take a byte each")
        return self._view(tensor, np.dtype(np.uint8))

    def _element(self, tensor: Tensor) -> np.dtype[Any]:
        if tensor.element is None:
            self._fail(f"holds {tensor.name} as {tensor.dtype}, which cannot be read")
        return NUMPY_DTYPES[tensor.element]

    def _view(self, tensor: Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._map is None:
            self._map = self._open_map()
        count = math.prod(tensor.shape)
        if count == 0:
            return np.empty(tensor.shape, dtype)
        first = tensor.start // mmap.PAGESIZE * mmap.PAGESIZE
        pages = first, tensor.stop - first
        # All of the tensor, not page by page as it is touched.
        self._map.madvise(mmap.MADV_WILLNEED, *pages)
        values = np.frombuffer(self._map, dtype, count, tensor.start)
        if tensor.stop - tensor.start >= _WORTH_RELEASING:
            # Slices and other shapes of it keep it alive. Other views of its pages stay readable:
            # of a mapped file, pages that are touched again come back.
            release = weakref.finalize(values, self._map.madvise, mmap.MADV_DONTNEED, *pages)
            release.atexit = False
        array: NDArray[Any] = values.reshape(tensor.shape)
        if tensor.start % dtype.itemsize:
            # Native code reads whole elements; old files may not align them.
            array = array.copy()
            array.flags.writeable = False
        return array

    def _open_map(self) -> mmap.mmap:
        try:
            with open(open_regular(self.path), "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:
            raise WeightError(f"cannot map {self.path}: {e}") from e
        if len(mapped) != self._size:
            self._fail("changed while it was being read; start again")
        return mapped

    def _fail(self, problem: str) -> NoReturn:
        raise WeightError(f"{self.path} {problem}")


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    """Slices ``first`` to ``end`` of the first dimension, as a tensor."""
    each = (tensor.stop - tensor.start) // max(tensor.shape[0], 1)
    start, stop = tensor.start + first * each, tensor.start + end * each
    return Tensor(tensor.name, tensor.dtype, (end - first, *tensor.shape[1:]), start, stop)


Found = Mapping[str, tuple[TensorFile, Tensor]]
"""The tensors of a checkpoint by name, each with the file that it is in."""
