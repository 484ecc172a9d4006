"""What layers are given of every sample, in files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.plan.ops import Buffer
from penstock.quantize.hidden import HiddenFile

BUFFERS = (Buffer("a", "tokens", 3, "float32"), Buffer("b", "tokens", 2, "float32"))


def sample(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {each.name: rng.random((4, each.cols), np.float32) for each in BUFFERS}


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    hidden = HiddenFile(tmp_path / "x", BUFFERS, 4)
    with hidden.written() as file:
        for seed in range(3):
            file.add(sample(seed))
        assert not hidden.path.exists()
    for seed in (2, 0, 1):
        for name, values in hidden.read(seed).items():
            np.testing.assert_array_equal(values, sample(seed)[name])
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


class Full:
    """A file on a disk without room."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_is_told_by_the_file(tmp_path: Path) -> None:
    hidden = HiddenFile(tmp_path / "x", BUFFERS, 4)

    def write() -> None:
        with hidden.written() as file:
            file._file = Full(file._file)
            file.add(sample(0))

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert caught.value.filename == str(hidden.path)
    assert not list(tmp_path.iterdir())
