"""``benchmarks/gpu`` lives outside of the package: tests put its folder on the path.

Where there is no GPU its kernels are interpreted, and clocks are fakes.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

if find_spec("torch") is not None:
    import torch

    if not torch.cuda.is_available():
        # Triton reads it where a kernel is defined: before any kernel's module is imported.
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure() -> None:
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture(scope="session")
def command() -> ModuleType:
    """The script ``benchmarks/gpu.py``, whose name the package beside it has, too."""
    spec = spec_from_file_location("gpu_command", BENCHMARKS / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def configs() -> Path:
    return BENCHMARKS / "configs"
