"""Writes safetensors files, of arrays and of other files' bytes, without a copy of either."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.written_file import sync_folder

DTYPES: Final = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3",
}
"""What safetensors call NumPy's types."""
_ALIGNED: Final = 64
"""Bytes at multiples of which the data of a file begins, so that views need no copy."""


@dataclass(frozen=True)
class NewTensor:
    """A tensor that is to be written: its bytes, under a name."""

    name: str
    dtype: str
    """As safetensors call it."""
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> NewTensor:
        data = np.ascontiguousarray(array)
        octets = data.reshape(-1).view(np.uint8)
        return cls(name, DTYPES[str(data.dtype)], data.shape, octets)


def write_tensors(path: Path, tensors: Iterable[NewTensor]) -> None:
    """Write the file, which is there in full or not at all. Raises OSError with its name."""
    # Those with large elements come first, so that all are aligned.
    ordered = sorted(tensors, key=lambda each: (-_width(each), each.name))
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(_head(ordered))
            for tensor in ordered:
                file.write(tensor.data.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def _width(tensor: NewTensor) -> int:
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return len(tensor.data) // count if count else 0


def _head(tensors: Sequence[NewTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + len(tensor.data)
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text
