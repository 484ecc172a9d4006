"""Which weights a checkpoint holds, told from little enough reading to do it at every start."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import WeightError
from penstock.weights.head_files import open_heads
from penstock.weights.safetensors import open_folder
from penstock.weights.tensor_file import Tensor, TensorFile

_SAMPLES: Final = 4
"""Places sampled in each tensor."""
_SAMPLE_BYTES: Final = 256


class WeightFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint, as it was when it was looked at."""

    name: str
    bytes: int
    mtime_ns: int
    digest: str
    """Of the file's header and of samples of every tensor. Times alone do not tell files apart:
    images and archives give all files one, and fine-tunes of a model share header and size."""


def weight_files(folder: Path) -> tuple[WeightFile, ...]:
    """The files that hold the weights of ``folder``, by name. Raises WeightError."""
    return _files(open_folder(folder))


def head_files(folder: Path, target: Path | None) -> tuple[WeightFile, ...]:
    """Likewise, of heads that draft, and then of the ``target`` that they share weights with."""
    own = _files(open_heads(folder))
    return own if target is None else own + weight_files(target)


def _files(tensors: Mapping[str, tuple[TensorFile, Tensor]]) -> tuple[WeightFile, ...]:
    found: dict[Path, list[Tensor]] = {}
    for file, tensor in tensors.values():
        found.setdefault(file.path, []).append(tensor)
    return tuple(_identify(path, tensors) for path, tensors in sorted(found.items()))


def _identify(path: Path, tensors: list[Tensor]) -> WeightFile:
    digest = hashlib.blake2b(digest_size=16)
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            status = os.fstat(fd)
            first = min((t.start for t in tensors), default=0)
            digest.update(os.pread(fd, first, 0))
            for tensor in sorted(tensors, key=lambda t: t.start):
                for at in _sample_places(tensor):
                    digest.update(os.pread(fd, min(_SAMPLE_BYTES, tensor.stop - at), at))
        finally:
            os.close(fd)
    except OSError as e:
        raise WeightError(f"cannot read {path}: {e.strerror}") from e
    return WeightFile(
        name=path.name,
        bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        digest=digest.hexdigest(),
    )


def _sample_places(tensor: Tensor) -> list[int]:
    """Positions in the file, spread evenly over the tensor."""
    size = tensor.stop - tensor.start
    return [tensor.start + size * (2 * i + 1) // (2 * _SAMPLES) for i in range(_SAMPLES)]
