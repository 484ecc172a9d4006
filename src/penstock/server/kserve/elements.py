"""The elements of tensors, as JSON and as bytes.

In bytes, numbers are little endian, a truth value is a byte, and each text has its length in bytes
before it, as a number of four bytes (Triton's binary tensor data extension).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from penstock.server.errors import ApiError

Element = str | bool | int | float

_Kind = Literal["text", "truth", "whole", "number"]
_FORMATS: Final[dict[str, tuple[_Kind, str]]] = {
    "BOOL": ("truth", "?"),
    "UINT8": ("whole", "B"),
    "UINT16": ("whole", "H"),
    "UINT32": ("whole", "I"),
    "UINT64": ("whole", "Q"),
    "INT8": ("whole", "b"),
    "INT16": ("whole", "h"),
    "INT32": ("whole", "i"),
    "INT64": ("whole", "q"),
    "FP16": ("number", "e"),
    "FP32": ("number", "f"),
    "FP64": ("number", "d"),
    "BYTES": ("text", ""),
}
_LENGTH: Final = struct.Struct("<I")


def count(shape: Sequence[int], name: str) -> int:
    """How many elements a tensor of this shape has. Raises ApiError for one that is none."""
    if any(size < 0 for size in shape):
        raise ApiError(400, f"{name}: a shape has no negative sizes, as {list(shape)}", param=name)
    return math.prod(shape)


def of_json(data: Sequence[object], datatype: str, expected: int, name: str) -> list[Element]:
    """The ``expected`` elements of ``data``, flat or nested, which are checked to be of
    ``datatype``. Raises ApiError naming the tensor."""
    kind, _ = _format(datatype, name)
    found = [_checked(each, kind, datatype, name) for each in _flat(data)]
    _check_count(found, expected, name)
    return found


def of_bytes(data: memoryview, datatype: str, expected: int, name: str) -> list[Element]:
    """The ``expected`` elements of ``datatype`` that are all of ``data``. Raises ApiError naming
    the tensor."""
    kind, letter = _format(datatype, name)
    if kind == "text":
        found: list[Element] = list(_texts(data, name))
    else:
        each = struct.Struct(f"<{letter}")
        if len(data) % each.size:
            raise _wrong(name, f"{len(data)} bytes are no whole number of {datatype}")
        found = [value for (value,) in each.iter_unpack(data)]
    _check_count(found, expected, name)
    return found


def to_bytes(values: Sequence[Element], datatype: str) -> bytes:
    """``values`` of ``datatype`` as bytes."""
    kind, letter = _FORMATS[datatype]
    if kind != "text":
        return struct.pack(f"<{len(values)}{letter}", *values)
    encoded = [str(value).encode() for value in values]
    return b"".join(_LENGTH.pack(len(each)) + each for each in encoded)


def _format(datatype: str, name: str) -> tuple[_Kind, str]:
    found = _FORMATS.get(datatype)
    if found is None:
        why = f"tensors of {datatype!r} are not taken; send one of {', '.join(_FORMATS)}"
        raise _wrong(name, why)
    return found


def _check_count(found: Sequence[Element], expected: int, name: str) -> None:
    if len(found) != expected:
        raise _wrong(name, f"its shape has {expected} elements, and its data {len(found)}")


def _flat(data: Sequence[object]) -> Iterator[object]:
    """The elements of nested lists, which may be nested deeply."""
    waiting = [iter(data)]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            yield each
        else:
            waiting.pop()


def _checked(value: object, kind: _Kind, datatype: str, name: str) -> Element:
    if kind == "text" and isinstance(value, str):
        return value
    if kind == "truth" and isinstance(value, bool):
        return value
    if kind in ("whole", "number") and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind == "number" and isinstance(value, float):
        return value
    raise _wrong(name, f"its data has an element that is no {datatype}")


def _texts(data: memoryview, name: str) -> Iterator[str]:
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size
        if begin > len(data):
            raise _wrong(name, "its data ends within the length of a text")
        (length,) = _LENGTH.unpack_from(data, at)
        at = begin + length
        if at > len(data):
            raise _wrong(name, "its data ends within a text")
        try:
            yield str(data[begin:at], "utf-8")
        except UnicodeDecodeError:
            raise _wrong(name, "its data has a text that is no UTF-8") from None


def _wrong(name: str, why: str) -> ApiError:
    return ApiError(400, f"{name}: {why}", param=name)
