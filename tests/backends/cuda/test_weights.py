"""Weights on their way to the device."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.weights import Uploader, dtype_of  # noqa: E402


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
