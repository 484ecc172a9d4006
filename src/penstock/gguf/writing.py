"""The head of a GGUF file as bytes: its metadata, and the directory of its tensors.

:mod:`penstock.gguf.metadata` and :mod:`penstock.gguf.tensors` have the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.gguf.metadata import ARRAY, BOOL, NUMBERS, STRING
from penstock.gguf.tensors import DEFAULT_ALIGNMENT
from penstock.gguf.types import TensorType, type_number

NewValue = bool | int | float | str | Sequence[str] | NDArray[Any]
"""A value to write: a number becomes uint32 or float32, the types that readers expect; an array
keeps the type of its elements."""

_VERSION: Final = 3
_UINT32: Final = 4
_FLOAT32: Final = 6
_KINDS: Final = {dtype: kind for kind, dtype in NUMBERS.items() if kind != BOOL}


@dataclass(frozen=True)
class NewTensor:
    """A tensor that is to be written. Its rows are whole blocks of its type."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """The slowest dimension first."""

    @property
    def nbytes(self) -> int:
        return self.type.nbytes(self.shape)


@dataclass(frozen=True)
class FileLayout:
    """What stands before the tensors of a new file, and where these lie."""

    head: bytes
    """Metadata and directory, up to the first byte of the first tensor."""
    starts: tuple[int, ...]
    """The first byte of each tensor; what is between them is 0."""
    size: int
    """Bytes of the file."""


def lay_out(pairs: Sequence[bytes], tensors: Sequence[NewTensor]) -> FileLayout:
    """Lay out a file of these pairs of :func:`pair` and these tensors, in their order."""
    directory, offset = [], 0
    offsets = []
    for tensor in tensors:
        offsets.append(offset)
        sizes = tensor.shape[::-1]
        directory.append(
            _text(tensor.name)
            + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
            + struct.pack("<IQ", type_number(tensor.type.name), offset)
        )
        offset += -(-tensor.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    head = struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(pairs))
    head += b"".join(pairs) + b"".join(directory)
    head += bytes(-len(head) % DEFAULT_ALIGNMENT)
    starts = tuple(len(head) + each for each in offsets)
    return FileLayout(head, starts, len(head) + offset)


def pair(key: str, value: NewValue) -> bytes:
    """A key and its value. Raises ValueError for integers that are no uint32."""
    return _text(key) + _value(value)


def _value(value: NewValue) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", BOOL, value)
        case int():
            if not 0 <= value < 1 << 32:
                raise ValueError(f"{value} is no uint32")
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", STRING) + _text(value)
        case np.ndarray():
            if value.dtype == np.bool_:
                kind, values = BOOL, value.astype("u1")
            else:
                kind, values = _KINDS[value.dtype], value
            return struct.pack("<IIQ", ARRAY, kind, len(values)) + values.tobytes()
        case _:
            texts = b"".join(map(_text, value))
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + texts


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
