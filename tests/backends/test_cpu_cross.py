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

CSRC = Path(__file__).parents[2] / "csrc"
NATIVE = platform.machine() == "aarch64"
COMPILER = shutil.which("g++" if NATIVE else "aarch64-linux-gnu-g++")
EMULATOR = None if NATIVE else shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
KERNELS = ("gemm_int*", "attention", "attention_work", "norm", "rope_write")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not CSRC.is_dir(), reason="the native sources are not here")
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler for AArch64")
@pytest.mark.skipif(EMULATOR is None and not NATIVE, reason="no emulator of AArch64")
@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+fp16+dotprod"])
def test_kernels_on_aarch64(tmp_path: Path, march: str) -> None:
    sources = [CSRC / "bench/kernels_check.cpp", CSRC / "pool.cpp", CSRC / "memory.cpp"]
    for pattern in KERNELS:
        found = [p for p in CSRC.glob(f"kernels/{pattern}.cpp") if not p.stem.endswith("_py")]
        assert found, pattern
        sources += found
    program = tmp_path / "check"
    options = ["-std=c++20", "-O2", "-ffp-contract=off", "-w", "-static", "-pthread"]
    assert COMPILER is not None
    compiled = subprocess.run(
        [COMPILER, *options, f"-march={march}", "-o", program, *sources],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert compiled.returncode == 0, compiled.stderr
    command = [program] if EMULATOR is None else [EMULATOR, program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout
