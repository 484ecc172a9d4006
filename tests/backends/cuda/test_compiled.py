"""Products compiled for GPUs that need not be there: what the compiler made of each tile.

``python compile_products.py 8.0 8.6 9.0 10.0 12.0`` prints it for other GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

SHARED_LIMIT = {"9.0": 227 * 1024}


def compiled(name: str, *arguments: str, cache: Path) -> list[str]:
    """What a program of this folder prints, with the interpreter off."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_INTERPRET": "0",
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", SHARED_LIMIT)
def test_products_fit_and_are_tensor_cores(capability: str, tmp_path: Path) -> None:
    kinds = defaultdict(set)
    for line in compiled("compile_products.py", capability, "--rows", "1", "2048", cache=tmp_path):
        case = json.loads(line)
        assert case["shared"] <= SHARED_LIMIT[capability], line
        # Of blocks by two levels the sums of splits, which are added once a split, do not fit
        # beside those of a plane and an iteration's scales, where one program computes many rows.
        room = 272 if case["scheme"] == "Q4_K" and case["rows"] > 64 else 0
        assert case["stack"] <= room, f"spills: {line}"
        assert case["copies of 16 bytes"] > 0, line
        assert len(case["products"]) == 1, line
        if case["weight_only"] or case["scheme"] == "None":
            # Sums of floats: of one kind of instruction, whatever the number of rows.
            kinds[case["scheme"], case["gated"]].add(case["products"][0])
    assert kinds
    assert all(len(found) == 1 for found in kinds.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", SHARED_LIMIT)
def test_kernels_of_experts_fit(capability: str, tmp_path: Path) -> None:
    names = set()
    for line in compiled("compile_experts.py", capability, cache=tmp_path):
        case = json.loads(line)
        names.add(case["name"])
        assert case["shared"] <= SHARED_LIMIT[capability], line
        # A gate's tile of 128 by 128 takes all 255 registers of a thread, and four more at times.
        assert case["stack"] <= 16, f"spills: {line}"
        if case["name"] == "expert_kernel":
            assert case["copies of 16 bytes"] > 0, line
    assert names == {"expert_kernel", "_route", "_dispatch", "_combine_experts"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", SHARED_LIMIT)
def test_kernels_of_adapters_fit(capability: str, tmp_path: Path) -> None:
    kinds = defaultdict(set)
    for line in compiled("compile_adapters.py", capability, cache=tmp_path):
        case = json.loads(line)
        assert case["shared"] <= 99 * 1024, line  # what the smallest GPUs have
        assert case["stack"] == 0, f"spills: {line}"
        # Sums of floats: of one kind of instruction, whatever the number of rows.
        kinds[case["name"], case["case"]].add(tuple(case["products"]))
    assert {name for name, _ in kinds} == {"adapter_down_kernel", "adapter_up_kernel"}
    assert all(len(found) == 1 for found in kinds.values()), kinds
