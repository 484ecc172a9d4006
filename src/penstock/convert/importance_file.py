"""Reads files of importance matrices, as llama.cpp's ``llama-imatrix`` writes them.

A newer file is a GGUF file: for a tensor NAME it has NAME.in_sum2, float32 ``[matrices, columns]``,
the sums of the squares of its inputs, and NAME.counts, float32 ``[matrices]``, of how many inputs
each is. An older one (``.dat``), little-endian: int32 number of entries; for each int32 length of
the name, the name, int32 number of calls, int32 number of values, the values float32, which are
mean squares times the calls; then, if it goes on, int32 number of chunks, int32 length of the name
of the text, and that name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from penstock.convert.importance import REMEDY, Floats, Importance
from penstock.errors import ConfigError
from penstock.gguf.arrays import Strings
from penstock.gguf.metadata import mapped
from penstock.gguf.names import MAGIC
from penstock.gguf.tensors import read_header
from penstock.weights.gguf_file import GgufFile

_SUMS: Final = ".in_sum2"
_COUNTS: Final = ".counts"
_PASSED_OVER: Final = ".in_sum"
"""Sums of inputs, which are for statistics."""
_MOST_ENTRIES: Final = 1 << 18
_MOST_NAME_BYTES: Final = 1024


def read_importance(path: Path) -> Importance:
    """Read an importance matrix in either form. Raises ConfigError, naming the file, for one that
    cannot be read, is malformed, or has numbers that are no mean squares."""
    with mapped(path, ConfigError) as data:
        if data[: len(MAGIC)] != MAGIC:
            return _Legacy(data[:], path).read()
    return _from_gguf(path)


def _from_gguf(path: Path) -> Importance:
    header = read_header(path, ConfigError)
    kind = header.metadata.get("general.type", "imatrix")
    if kind != "imatrix":
        raise ConfigError(
            f"{path} is a GGUF file of type {str(kind)[:40]!r}, and not an importance matrix; "
            f"{REMEDY}"
        )
    file = GgufFile(header)
    means: dict[str, Floats] = {}
    for stored, entry in header.tensors.items():
        if stored.endswith(_SUMS):
            name = stored.removesuffix(_SUMS)
            other = name + _COUNTS
        elif stored.endswith(_COUNTS):
            name = stored.removesuffix(_COUNTS)
            other = name + _SUMS
        elif stored.endswith(_PASSED_OVER):
            continue
        else:
            _refuse(path, f"has a tensor {stored}, which no importance matrix has")
        if other not in header.tensors:
            _refuse(path, f"has {stored}, and no {other}")
        if entry.type.name != "F32":
            _refuse(path, f"has {stored} in {entry.type.name}, which must be F32")
        if stored.endswith(_SUMS):
            means[name] = _means(path, name, file)
    if not means:
        _refuse(path, "has no entry")
    chunks = header.metadata.get("imatrix.chunk_count", 0)
    if not isinstance(chunks, int) or not 0 <= chunks < 1 << 31:
        _refuse(
            path, f"has {chunks!r:.40} as imatrix.chunk_count, which must be a number of chunks"
        )
    datasets = header.metadata.get("imatrix.datasets")
    listed = datasets if isinstance(datasets, list | Strings) else ()
    return Importance(
        path,
        means,
        chunks,
        tuple(each for each in listed if isinstance(each, str)),
    )


def _means(path: Path, name: str, file: GgufFile) -> Floats:
    counts = file.view(name + _COUNTS).astype(np.float64).reshape(-1)
    sums = file.view(name + _SUMS).reshape(-1)
    if not (np.isfinite(counts).all() and (counts >= 0).all()):
        _refuse(path, f"has counts for {name} that are no counts")
    if len(counts) == 0 or len(sums) == 0 or len(sums) % len(counts):
        _refuse(path, f"has {len(counts)} counts for {name}, and {len(sums)} sums")
    rows = _checked(path, name, sums).reshape(len(counts), -1)
    used = counts[:, None] > 0
    means: Floats = np.where(used, rows / np.where(used, counts[:, None], 1), 1).astype(np.float32)
    return means


class _Legacy:
    """The older form."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0

    def read(self) -> Importance:
        number = self._integer("the number of entries")
        if not 1 <= number <= _MOST_ENTRIES:
            _refuse(self._path, "is neither a GGUF file nor an importance matrix of the older form")
        means: dict[str, Floats] = {}
        for _ in range(number):
            name = self._text()
            if name in means:
                _refuse(self._path, f"has two entries for {name}")
            calls = self._integer(f"the calls of {name}")
            if calls < 0:
                _refuse(self._path, f"has {calls} calls for {name}")
            count = self._integer(f"the number of values of {name}")
            if count < 1:
                _refuse(self._path, f"has {count} values for {name}")
            values = np.frombuffer(self._take(4 * count, f"the values of {name}"), "<f4")
            means[name] = _checked(self._path, name, values)
        chunks, datasets = 0, tuple[str, ...]()
        if self._at < len(self._data):
            chunks = max(self._integer("the number of chunks"), 0)
            if self._at < len(self._data):
                text = self._text()
                datasets = (text,) if text else ()
        if self._at < len(self._data):
            _refuse(self._path, f"goes on for {len(self._data) - self._at} bytes behind its end")
        return Importance(self._path, means, chunks, datasets)

    def _take(self, size: int, what: str) -> bytes:
        if size > len(self._data) - self._at:
            _refuse(self._path, f"ends within {what}")
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]

    def _integer(self, what: str) -> int:
        return int.from_bytes(self._take(4, what), "little", signed=True)

    def _text(self) -> str:
        size = self._integer("the length of a name")
        if not 0 <= size <= _MOST_NAME_BYTES:
            _refuse(self._path, f"has a name of {size} bytes")
        try:
            return self._take(size, "a name").decode()
        except UnicodeDecodeError:
            _refuse(self._path, "has a name that is no UTF-8")


def _checked(path: Path, name: str, values: Floats) -> Floats:
    """Raises ConfigError unless these can be sums of squares."""
    if not np.isfinite(values).all():
        _refuse(path, f"has values for {name} that are not finite")
    if (values < 0).any():
        _refuse(path, f"has values below 0 for {name}")
    return values


def _refuse(path: Path, problem: str) -> NoReturn:
    raise ConfigError(f"importance matrix {path} {problem}; {REMEDY}")
