"""GGUF metadata: the key-value section at the head of a GGUF file.

Layout (little-endian): magic ``GGUF``, uint32 version, uint64 tensor count, uint64 pair count,
then pairs of key (string), uint32 value type, value. A string is a uint64 length and UTF-8
bytes; an array is a uint32 element type, a uint64 count and the elements. From the GGUF
specification of ggml, versions 2 and 3.

Every length is checked against the bytes that remain before anything is allocated for it.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from penstock.errors import TokenizerError
from penstock.regular_file import open_regular

GgufScalar = bool | int | float | str
GgufValue = GgufScalar | list["GgufValue"]

_MAX_KEY_BYTES = 65535
_MAX_DEPTH = 4  # arrays of arrays are legal; nobody writes deep ones
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_LEAST_BYTES = {_STRING: 8, _ARRAY: 12}


def read_metadata(path: Path) -> dict[str, GgufValue]:
    """All key-value pairs of a GGUF file. Raises TokenizerError if it is missing or malformed."""
    try:
        with open(open_regular(path), "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise TokenizerError(f"{path} is empty; download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_metadata(data, str(path))
    except OSError as error:
        raise TokenizerError(f"cannot read {path}: {error.strerror}") from error


def parse_metadata(data: bytes | mmap.mmap, name: str = "GGUF data") -> dict[str, GgufValue]:
    """The key-value pairs of a GGUF file's contents; ``name`` is what errors call it."""
    reader = _Reader(data, name)
    if reader.take(4) != b"GGUF":
        raise TokenizerError(f"{name} is not a GGUF file: it does not start with GGUF")
    version = reader.number("I")
    if version not in (2, 3):
        if version in (2 << 24, 3 << 24):
            raise TokenizerError(f"{name} is a big-endian GGUF file; convert it to little-endian")
        raise TokenizerError(f"{name} is GGUF version {version}; Penstock reads versions 2 and 3")
    reader.number("Q")  # tensor count
    pairs: dict[str, GgufValue] = {}
    for _ in range(reader.count(least_bytes=13)):
        key = reader.string(_MAX_KEY_BYTES)
        if key in pairs:
            reader.fail(f"the key {key!r} occurs twice")
        pairs[key] = reader.value(reader.number("I"), 0)
    return pairs


class _Reader:
    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self._data = data
        self._at = 0
        self._name = name

    def fail(self, what: str) -> None:
        raise TokenizerError(
            f"{self._name} is corrupt at byte {self._at}: {what}; download or convert it again"
        )

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            self.fail(f"{size} more bytes are declared than the file holds")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def number(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return int(value)

    def count(self, least_bytes: int) -> int:
        """A number of items, each of which takes at least this many bytes."""
        count = self.number("Q")
        if count * least_bytes > len(self._data) - self._at:
            self.fail(f"{count} items are declared, more than the file can hold")
        return count

    def string(self, limit: int | None = None) -> str:
        size = self.number("Q")
        if limit is not None and size > limit:
            self.fail(f"a key of {size} bytes is declared")
        raw = self.take(size)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail("a string is not UTF-8")
            raise

    def value(self, kind: int, depth: int) -> GgufValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(depth)
        if kind in _NUMBERS:
            return self.numbers(kind, 1)[0]
        self.fail(f"{kind} is not a value type")
        raise AssertionError

    def array(self, depth: int) -> list[GgufValue]:
        if depth == _MAX_DEPTH:
            self.fail(f"arrays are nested more than {_MAX_DEPTH} deep")
        kind = self.number("I")
        if kind in _NUMBERS:
            return self.numbers(kind, self.count(struct.calcsize("<" + _NUMBERS[kind])))
        if kind not in _LEAST_BYTES:
            self.fail(f"{kind} is not a value type")
        count = self.count(_LEAST_BYTES[kind])
        if kind == _STRING:
            return self.strings(count)
        return [self.array(depth + 1) for _ in range(count)]

    def strings(self, count: int) -> list[GgufValue]:
        """Vocabularies have hundreds of thousands: one loop, the same checks as string()."""
        data, at, end = self._data, self._at, len(self._data)
        read_size = struct.Struct("<Q").unpack_from
        values: list[GgufValue] = []
        for _ in range(count):
            (size,) = read_size(data, at) if at + 8 <= end else (end,)
            start = at + 8
            if size > end - start:
                self._at = at
                self.fail("a string is longer than the rest of the file")
            at = start + size
            try:
                values.append(data[start:at].decode())
            except UnicodeDecodeError:
                self._at = start
                self.fail("a string is not UTF-8")
        self._at = at
        return values

    def numbers(self, kind: int, count: int) -> list[GgufValue]:
        code = _NUMBERS[kind]
        raw = self.take(count * struct.calcsize("<" + code))
        values = struct.unpack(f"<{count}{code}", raw)
        if kind != _BOOL:
            return list(values)
        if any(value > 1 for value in values):
            self.fail("a bool is neither 0 nor 1")
        return [value == 1 for value in values]
