"""GGUF metadata: the key-value section at the head of a GGUF file.

Layout (little-endian): magic ``GGUF``, uint32 version, uint64 tensor count, uint64 pair count,
then pairs of key (string), uint32 value type, value. A string is a uint64 length and UTF-8
bytes; an array is a uint32 element type, a uint64 count and the elements. From the GGUF
specification of ggml, versions 2 and 3.

Every length is checked against the bytes that remain before anything is allocated for it, and all
of them together against what a vocabulary may need. Arrays of numbers stay arrays.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from penstock.errors import PenstockError
from penstock.gguf.arrays import Numbers, Strings
from penstock.gguf.names import MAGIC
from penstock.gguf.native import native
from penstock.regular_file import open_regular

GgufScalar = bool | int | float | str


GgufValue = GgufScalar | list["GgufValue"] | Numbers | Strings

_POINTER = b"version https://git-lfs"
_MAX_KEY_BYTES = 65535
_MAX_BYTES = 1 << 28
"""Maximum size of the metadata section in bytes: ten times that of the largest vocabularies."""
_MAX_ITEMS = 1 << 22
"""Maximum number of keys and strings, each of which becomes a Python object."""
_MANY = 1024
"""Number of strings from which on an array of them is one of :class:`Strings`."""
_INNER_ARRAY = 64
"""Number of items that an array within an array counts as."""
_MAX_DEPTH = 4  # arrays of arrays are legal; nobody writes deep ones
STRING, ARRAY, BOOL = 8, 9, 7
"""The numbers that the specification has for these types of values."""
NUMBERS: Final[Mapping[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Those of types of numbers."""
_LEAST_BYTES = {STRING: 8, ARRAY: 12}


@dataclass(frozen=True)
class Metadata:
    """The key-value pairs of a GGUF file, and what stands around them."""

    pairs: dict[str, GgufValue]
    num_tensors: int
    """Number of tensors that the file says it has."""
    end: int
    """Offset of the first byte behind the pairs, where the directory of tensors begins."""
    spans: Mapping[str, tuple[int, int]]
    """The first byte of each pair, and the one behind it, by key."""


def read_metadata(path: Path, error: type[PenstockError]) -> dict[str, GgufValue]:
    """Return all key-value pairs of a GGUF file. Raises ``error`` if it is missing or malformed."""
    with mapped(path, error) as data:
        return parse_metadata(data, str(path), error).pairs


@contextmanager
def mapped(path: Path, error: type[PenstockError]) -> Iterator[mmap.mmap]:
    """The bytes of a file. Raises ``error`` if it is missing or empty."""
    try:
        with open(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise error(f"{path} is empty; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as e:
        raise error(f"cannot read {path}: {e.strerror}") from e


def parse_metadata(data: bytes | mmap.mmap, name: str, error: type[PenstockError]) -> Metadata:
    """The metadata in a GGUF file's contents; ``name`` is what errors, of type ``error``, call the
    file."""
    reader = Reader(data, name, error)
    if data[: len(_POINTER)] == _POINTER:
        raise error(f"{name} is a Git LFS pointer, not the model; run `git lfs pull`")
    if reader.take(len(MAGIC)) != MAGIC:
        raise error(f"{name} is not a GGUF file: it does not start with GGUF")
    version = reader.number("I")
    if version not in (2, 3):
        if version in (2 << 24, 3 << 24):
            raise error(f"{name} is a big-endian GGUF file; convert it to little-endian")
        raise error(f"{name} is GGUF version {version}; Penstock reads versions 2 and 3")
    num_tensors = reader.number("Q")
    pairs: dict[str, GgufValue] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(reader.items(least_bytes=13)):
        start = reader.at
        key = reader.string(_MAX_KEY_BYTES)
        if key in pairs:
            reader.fail(f"the key {key!r} occurs twice")
        pairs[key] = reader.value(reader.number("I"), 0)
        spans[key] = start, reader.at
    return Metadata(pairs, num_tensors, reader.at, spans)


class Reader:
    """Reads numbers, strings and values one behind the other, from offset ``at`` on."""

    def __init__(
        self, data: bytes | mmap.mmap, name: str, error: type[PenstockError], at: int = 0
    ) -> None:
        self._data = data
        self._at = at
        self._end = min(len(data), at + _MAX_BYTES)
        self._items_left = _MAX_ITEMS
        self._name = name
        self._error = error

    @property
    def at(self) -> int:
        return self._at

    def fail(self, what: str) -> NoReturn:
        raise self._error(
            f"{self._name} is corrupt at byte {self._at}: {what}; download or convert it again"
        )

    def take(self, size: int) -> bytes:
        if size > self._end - self._at:
            self._too_large(f"{size} more bytes")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return int(value)

    def count(self, least_bytes: int) -> int:
        """A number of items, each of which takes at least this many bytes."""
        count = self.number("Q")
        if count * least_bytes > self._end - self._at:
            self._too_large(f"{count} items")
        return count

    def items(self, least_bytes: int, weight: int = 1) -> int:
        """As :meth:`count`, of what becomes an object each."""
        count = self.count(least_bytes)
        self._items_left -= count * weight
        if self._items_left < 0:
            self.fail(f"more than {_MAX_ITEMS} keys, strings and arrays are declared")
        return count

    def _too_large(self, what: str) -> NoReturn:
        if self._end < len(self._data):
            self.fail(f"{what} are declared, and metadata may have {_MAX_BYTES} bytes")
        self.fail(f"{what} are declared, more than the file can hold")

    def string(self, limit: int | None = None) -> str:
        size = self.number("Q")
        if limit is not None and size > limit:
            self.fail(f"a name of {size} bytes is declared")
        raw = self.take(size)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail("a string is not UTF-8")

    def value(self, kind: int, depth: int) -> GgufValue:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(depth)
        if kind in NUMBERS:
            return self.numbers(kind, 1)[0]
        self.fail(f"{kind} is not a value type")

    def array(self, depth: int) -> GgufValue:
        if depth == _MAX_DEPTH:
            self.fail(f"arrays are nested more than {_MAX_DEPTH} deep")
        kind = self.number("I")
        if kind in NUMBERS:
            return self.numbers(kind, self.count(NUMBERS[kind].itemsize))
        if kind not in _LEAST_BYTES:
            self.fail(f"{kind} is not a value type")
        count = self.items(_LEAST_BYTES[kind], 1 if kind == STRING else _INNER_ARRAY)
        if kind == STRING:
            if count >= _MANY:
                return self.many_strings(count) or Strings.of(self.strings(count))
            return list(self.strings(count))
        return [self.array(depth + 1) for _ in range(count)]

    def many_strings(self, count: int) -> Strings | None:
        """As :meth:`strings`, which says what is wrong where this finds something and is None.

        Without native code it is None always.
        """
        if native is None:
            return None
        found = native.read_strings(self._data, self._at, self._end, count)
        if found is None:
            return None
        text, ends, at = found
        # All is UTF-8 where the whole is, and no string begins within a character.
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
        self._at = at
        return Strings(text, np.frombuffer(ends, np.int64))

    def strings(self, count: int) -> list[str]:
        """Vocabularies have hundreds of thousands: one loop, the same checks as string()."""
        data, at, end = self._data, self._at, self._end
        read_size = struct.Struct("<Q").unpack_from
        values: list[str] = []
        for _ in range(count):
            (size,) = read_size(data, at) if at + 8 <= end else (end,)
            start = at + 8
            if size > end - start:
                self._at = at
                self._too_large(f"{size} bytes of a string")
            at = start + size
            try:
                values.append(data[start:at].decode())
            except UnicodeDecodeError:
                self._at = start
                self.fail("a string is not UTF-8")
        self._at = at
        return values

    def numbers(self, kind: int, count: int) -> Numbers:
        dtype = NUMBERS[kind]
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if kind != BOOL:
            return Numbers(values)
        if values.size and values.max() > 1:
            self.fail("a bool is neither 0 nor 1")
        return Numbers(values.view(np.bool_))
