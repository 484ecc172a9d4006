"""Weights on their way to the device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.weights import Fill, Uploader, dtype_of, fill_all  # noqa: E402


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_arrays_arrive_whole_through_small_buffers(size: int, device: Any) -> None:
    upload = Uploader(device, staging_bytes=128)
    array = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    array.flags.writeable = False
    assert upload.tensor(array, torch.float32).tolist() == array.tolist()
    rounded = array.astype(ml_dtypes.bfloat16)
    got = upload.tensor(array, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert got.tolist() == rounded.astype(np.float32).tolist()
    assert upload.tensor(rounded, torch.float32).tolist() == rounded.astype(np.float32).tolist()
    assert dtype_of(rounded) is torch.bfloat16


def test_a_part_of_a_tensor_is_filled(device: Any) -> None:
    target = torch.zeros(4, 3, device=device)
    Uploader(device).put(np.ones((2, 3), np.float16), target[1:3])
    assert target.sum(dim=1).tolist() == [0, 3, 3, 0]
    with pytest.raises(ValueError, match="does not fill"):
        Uploader(device).put(np.ones(5, np.float32), target[0])
    with pytest.raises(ValueError, match="does not fill"):
        Uploader(device).put(np.ones((4, 1), np.float32), target[:, :1])


class Source:
    def __init__(self) -> None:
        self.read: list[str] = []

    def names(self) -> Any:
        return ["a", "b", "c"]

    def get(self, name: str) -> np.ndarray:
        self.read.append(name)
        if name == "c":
            raise OSError("disk")
        return np.full(2, ord(name))


class Stack:
    def member(self, name: str, index: int) -> np.ndarray:
        return np.full(2, 10 * ord(name) + index)


def test_a_stack_is_read_expert_by_expert() -> None:
    got: list[int] = []
    fills = [Fill("a", lambda array: got.append(int(array[0])), expert) for expert in (2, 0, 1)]
    fill_all(fills, Stack())  # type: ignore[arg-type]
    assert got == [972, 970, 971]


def test_fills_run_in_order_and_errors_come_through() -> None:
    source, got = Source(), []
    fills = [
        Fill(name, lambda array, name=name: got.append((name, int(array[0])))) for name in "abab"
    ]
    fill_all(fills, source)
    assert got == [("a", 97), ("b", 98), ("a", 97), ("b", 98)]
    assert source.read == list("abab")
    with pytest.raises(OSError, match="disk"):
        fill_all([Fill("a", got.append), Fill("c", got.append)], source)
