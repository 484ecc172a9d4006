"""Kernels run on the GPU where there is one, else interpreted on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest
from support.interpreter import quick_interpreter

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        # Triton reads it where a kernel is defined: before any kernel's module is imported.
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def interpret_quickly() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        yield
        return
    with quick_interpreter():
        yield


@contextmanager
def _steady(device: Any) -> Iterator[None]:
    """Products whose rows have the same bits in a tile of any shape, as they have on a GPU.

    The interpreter's are NumPy's, which takes a row's sum in another order where there are other
    rows, and adds as much of k at once as a tile is deep. A GPU adds a few of k at a time, whatever
    the tile; so does this, eight products at a time, each eight exactly.
    """
    if device.type != "cpu":
        yield
        return
    import numpy as np
    from triton.runtime import interpreter

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        sums, x, y = d.data, a.data.astype(np.float64), b.data.astype(np.float64)
        for k in range(0, x.shape[1], 8):
            sums = (sums + x[:, k : k + 8] @ y[k : k + 8]).astype(d.data.dtype)
        return interpreter.TensorHandle(sums, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
        yield


@pytest.fixture
def steady_sums(device: Any) -> Iterator[None]:
    with _steady(device):
        yield


@pytest.fixture(scope="module")
def steady_module(device: Any) -> Iterator[None]:
    """As ``steady_sums``, for all of a module's tests and fixtures."""
    with _steady(device):
        yield
