"""What only a real GPU can show: graphs, copies beside kernels, memory that runs out.

Kernels are imported within fixtures and tests: here, where there is no GPU, by nobody.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from support.needs import Need, lacking


@pytest.fixture(scope="session", autouse=True)
def device() -> Any:
    if find_spec("torch") is None or find_spec("triton") is None:
        pytest.skip("torch and triton are not both installed")
    from penstock.gpu import find_gpu

    search = find_gpu(0)
    if search.gpu is None:
        lacking(Need.GPU, search.problem or "no NVIDIA driver is found")
    if search.gpu.interpreted:
        lacking(Need.GPU, "kernels are interpreted (TRITON_INTERPRET)")
    import torch

    return torch.device("cuda", 0)
