"""The kernels for AArch64, cross-compiled and run under emulation.

Needs ``g++-aarch64-linux-gnu`` and ``qemu-user-static`` (Debian's names), or an AArch64 machine.
csrc/bench/kernels_check.cpp compares lanes and kernels with plain scalar code.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from support.needs import Need

CSRC = Path(__file__).parents[2] / "csrc"
NATIVE = platform.machine() == "aarch64"
COMPILER = shutil.which("g++" if NATIVE else "aarch64-linux-gnu-g++")
EMULATOR = None if NATIVE else shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(COMPILER is None, reason=Need.PROGRAM.reason("a C++ compiler for AArch64"))
@pytest.mark.skipif(
    EMULATOR is None and not NATIVE, reason=Need.PROGRAM.reason("an emulator of AArch64")
)
@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+fp16+dotprod"])
def test_kernels_on_aarch64(tmp_path: Path, march: str) -> None:
    parts = ("bench/kernels_check.cpp", "caches.cpp", "memory.cpp", "pool.cpp", "states.cpp")
    sources = [CSRC / part for part in parts]
    kernels = [p for p in CSRC.glob("kernels/*.cpp") if not p.stem.endswith("_py")]
    assert len(kernels) > 10
    program = tmp_path / "check"
    options = ["-std=c++20", "-O2", "-ffp-contract=off", "-w", "-static", "-pthread"]
    assert COMPILER is not None
    compiled = subprocess.run(
        [COMPILER, *options, f"-march={march}", "-o", program, *sources, *kernels],
        capture_output=True,
        text=True,
        timeout=420,
    )
    assert compiled.returncode == 0, compiled.stderr
    command = [program] if EMULATOR is None else [EMULATOR, program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=420)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout
