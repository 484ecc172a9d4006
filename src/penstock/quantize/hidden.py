"""Files of the hidden states that a layer is given, of all samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.plan.ops import Buffer, BufferName

F32 = NDArray[np.float32]


class HiddenFile:
    """Float32 ``[samples, tokens, columns]``, the columns of all ``buffers`` side by side.

    Samples are read and written one at a time, so that only one is in memory.
    """

    def __init__(self, path: Path, buffers: Sequence[Buffer], tokens: int) -> None:
        self.path = path
        self._buffers, self._tokens = buffers, tokens
        self._columns = sum(buffer.cols for buffer in buffers)

    @property
    def _sample_bytes(self) -> int:
        return self._tokens * self._columns * 4

    def read(self, index: int) -> dict[BufferName, F32]:
        """The values of sample ``index``."""
        values = np.fromfile(
            self.path,
            np.float32,
            self._tokens * self._columns,
            offset=index * self._sample_bytes,
        ).reshape(self._tokens, self._columns)
        found: dict[BufferName, F32] = {}
        first = 0
        for buffer in self._buffers:
            found[buffer.name] = values[:, first : first + buffer.cols]
            first += buffer.cols
        return found

    def written(self) -> HiddenWriter:
        """Begin to write all samples, in their order."""
        return HiddenWriter(self.path, self._buffers)


class HiddenWriter:
    """Writes samples one after another; the file has its name once all are there. Raises OSError
    with that name."""

    def __init__(self, path: Path, buffers: Sequence[Buffer]) -> None:
        self._path, self._buffers = path, buffers
        self._partial = path.with_name(f"{path.name}.partial")
        self._file = self._partial.open("wb", buffering=0)

    def add(self, values: Mapping[BufferName, F32]) -> None:
        """Write the next sample."""
        joined = np.concatenate([values[buffer.name] for buffer in self._buffers], axis=1)
        data = joined.data.cast("B")
        with self._named():
            while data:
                data = data[self._file.write(data) :]

    def __enter__(self) -> HiddenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                with self._named():
                    os.fsync(self._file.fileno())  # before a layer is written that needs it no more
                    os.replace(self._partial, self._path)
        finally:
            self._file.close()
            with suppress(OSError):
                self._partial.unlink()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of writing have no name of a file, and would be taken for those of the output."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
