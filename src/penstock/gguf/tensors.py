"""The directory of a GGUF file: the name, type, shape and place of each tensor.

It follows the metadata: for each tensor a name (string), uint32 number of dimensions, as many
uint64, the fastest first, uint32 type, and uint64 offset within the data. The data begin at the
next multiple of ``general.alignment`` behind the directory, and every tensor at one within them.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.gguf.metadata import GgufValue, Reader, mapped, parse_metadata
from penstock.gguf.types import TYPES, TensorType

MAX_TENSORS: Final = 1 << 18
_MAX_NAME_BYTES: Final = 1024
_MAX_DIMENSIONS: Final = 4
_MAX_ALIGNMENT: Final = 1 << 20
DEFAULT_ALIGNMENT: Final = 32
_LEAST_BYTES: Final = 24  # of an entry, its name and dimensions being empty


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a file: its bytes are those from ``start`` to before ``stop``."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """The slowest dimension first, as NumPy has it; a row is whole blocks."""
    start: int
    stop: int


@dataclass(frozen=True)
class GgufHeader:
    """All that a GGUF file says, but for the values of tensors."""

    path: Path
    size: int
    """Bytes of the file."""
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, TensorEntry]
    """Entries by the tensor's name, in the order of the directory."""


def read_header(path: Path, error: type[PenstockError]) -> GgufHeader:
    """Read the metadata and the directory of a file.

    Every tensor lies within the file, and no two of them overlap: this has been checked before any
    is looked at. Raises ``error``, naming the file, the tensor and the fix, where it is not so.
    """
    with mapped(path, error) as data:
        metadata = parse_metadata(data, str(path), error)
        directory = _Directory(data, path, error, metadata.end)
        tensors = directory.read(metadata.num_tensors, metadata.pairs)
        return GgufHeader(path, len(data), metadata.pairs, tensors)


class _Directory:
    """Reads the directory, and checks it."""

    def __init__(self, data: mmap.mmap, path: Path, error: type[PenstockError], start: int) -> None:
        self._reader = Reader(data, str(path), error, start)
        self._path, self._error, self._size = path, error, len(data)

    def read(self, count: int, metadata: Mapping[str, GgufValue]) -> dict[str, TensorEntry]:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or not 0 < alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fail(f"general.alignment is {alignment!r:.40}, not a power of two")
        if count > MAX_TENSORS or count * _LEAST_BYTES > self._size - self._reader.at:
            raise self._fail(f"{count} tensors are declared, more than it can hold")
        entries = [self._entry() for _ in range(count)]
        origin = -(-self._reader.at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for name, kind, shape, offset in entries:
            if name in tensors:
                raise self._fail(f"tensor {name!r} occurs twice")
            if offset % alignment:
                raise self._fail(
                    f"tensor {name!r} begins at byte {offset} of the data, which is no multiple of "
                    f"general.alignment ({alignment})"
                )
            nbytes = kind.nbytes(shape)
            start = origin + offset
            if start + nbytes > self._size:
                raise self._error(
                    f"{self._path} is truncated: tensor {name!r} ends at byte {start + nbytes}, "
                    f"the file at {self._size}; download it again"
                )
            tensors[name] = TensorEntry(name, kind, shape, start, start + nbytes)
        self._check_overlaps(tensors)
        return tensors

    def _entry(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._reader.string(_MAX_NAME_BYTES)
        dimensions = self._reader.number("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._fail(f"tensor {name!r} has {dimensions} dimensions, not 1 to 4")
        shape = tuple(self._reader.number("Q") for _ in range(dimensions))[::-1]
        number = self._reader.number("I")
        offset = self._reader.number("Q")
        kind = TYPES.get(number)
        if kind is None:
            raise self._error(
                f"{self._path}: tensor {name!r} is of type {number}, which Penstock does not know; "
                "take the model in another quantization, such as Q4_K_M or Q8_0"
            )
        if not all(shape):
            raise self._fail(f"tensor {name!r} of shape {list(shape)} has no values")
        if shape[-1] % kind.columns:
            raise self._fail(
                f"tensor {name!r} of shape {list(shape)} is in {kind.name}, whose blocks are "
                f"{kind.columns} columns, and has no whole number of them"
            )
        return name, kind, shape, offset

    def _check_overlaps(self, tensors: Mapping[str, TensorEntry]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda each: each.start):
            if tensor.start < end:
                raise self._fail(f"tensors {before!r} and {tensor.name!r} overlap")
            end, before = tensor.stop, tensor.name

    def _fail(self, problem: str) -> PenstockError:
        return self._error(
            f"{self._path} is corrupt: {problem}; download or convert the file again"
        )
