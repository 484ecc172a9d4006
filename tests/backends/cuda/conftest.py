"""Kernels run on the GPU where there is one, else interpreted on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from support.interpreter import quick_interpreter, steady_products

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        # Triton reads it where a kernel is defined: before any kernel's module is imported.
        os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> Any:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session", autouse=True)
def interpreted() -> Iterator[None]:
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        yield
        return
    with quick_interpreter(), steady_products():
        yield
