"""The kernels for AArch64, cross-compiled and run under emulation.

Needs ``g++-aarch64-linux-gnu`` and ``qemu-user-static`` (Debian's names), or an AArch64 machine.
csrc/bench/kernels_check.cpp compares lanes and kernels with plain scalar code.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.needs import Need, lacking

from penstock.backends.cpu.variants import runnable_here

CSRC = Path(__file__).parents[2] / "csrc"
NATIVE = platform.machine() == "aarch64"
COMPILER = shutil.which("g++" if NATIVE else "aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
VARIANTS = ("neon", "dotprod", "i8mm")


def flags_of(isa: str) -> str:
    """The compiler's option for a variant, as the build has it."""
    text = (CSRC / "CMakeLists.txt").read_text()
    found: dict[str, str] = dict(re.findall(r"^set\(flags_(\w+) (\S+)\)$", text, re.MULTILINE))
    options = found[isa]
    for name, flags in found.items():
        options = options.replace(f"${{flags_{name}}}", flags)
    return options


def sources(isa: str) -> list[Path]:
    """The program and the kernels that the variant is built of, those that take longest first."""
    parts = ("bench/kernels_check.cpp", "caches.cpp", "memory.cpp", "pool.cpp", "states.cpp")
    left_out = ("_py", "_amx") if isa == "i8mm" else ("_py", "_amx", "_pairs", "gemm_dot")
    kernels = [p for p in CSRC.glob("kernels/*.cpp") if not p.stem.endswith(left_out)]
    assert len(kernels) > 10
    long = [p for p in kernels if re.match(r"gemm_(block|points)_(bytes|floats|pairs)", p.stem)]
    assert long
    return [*long, *(CSRC / part for part in parts), *(p for p in kernels if p not in long)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(COMPILER is None, reason=Need.PROGRAM.reason("a C++ compiler for AArch64"))
@pytest.mark.parametrize("isa", VARIANTS)
def test_kernels_on_aarch64(tmp_path: Path, isa: str) -> None:
    here = NATIVE and isa in runnable_here()
    if not here and EMULATOR is None:
        lacking(Need.PROGRAM, "an emulator of AArch64")
    assert COMPILER is not None
    compiler = [COMPILER, "-std=c++20", "-O1", "-ffp-contract=off", "-w", flags_of(isa)]

    def compile_one(source: Path) -> Path:
        to = tmp_path / f"{source.stem}.o"
        done = subprocess.run([*compiler, "-c", "-o", to, source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return to

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_one, sources(isa)))
    program = tmp_path / "check"
    linked = subprocess.run(
        [*compiler, "-static", "-pthread", "-o", program, *objects], capture_output=True, text=True
    )
    assert linked.returncode == 0, linked.stderr
    emulator = [] if here or EMULATOR is None else [EMULATOR]
    run = subprocess.run([*emulator, program], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout
