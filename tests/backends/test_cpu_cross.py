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


def units(isa: str, folder: Path) -> list[Path]:
    """What is compiled for a variant: several sources as one, as an installation has them."""
    left_out = ("_py", "_amx") if isa == "i8mm" else ("_py", "_amx", "_pairs", "gemm_dot")
    kernels = [p for p in sorted(CSRC.glob("kernels/*.cpp")) if not p.stem.endswith(left_out)]
    alone = [
        path
        for path in kernels
        if re.match(r"gemm_((block|points)_(bytes|floats|pairs)|product)$", path.stem)
    ]
    together = [path for path in kernels if path not in alone]
    groups = {
        "products": [path for path in together if path.stem.startswith("gemm")],
        "others": [path for path in together if not path.stem.startswith("gemm")],
        "core": [CSRC / f"{name}.cpp" for name in ("caches", "memory", "pool", "states")],
    }
    assert min(len(alone), *map(len, groups.values())) > 3
    for name, group in groups.items():
        (folder / f"{name}.cpp").write_text("".join(f'#include "{path}"\n' for path in group))
    return [*alone, CSRC / "bench/kernels_check.cpp", *(folder / f"{name}.cpp" for name in groups)]


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
        objects = list(pool.map(compile_one, units(isa, tmp_path)))
    program = tmp_path / "check"
    linked = subprocess.run(
        [*compiler, "-static", "-pthread", "-o", program, *objects], capture_output=True, text=True
    )
    assert linked.returncode == 0, linked.stderr
    emulator = [] if here or EMULATOR is None else [EMULATOR]
    run = subprocess.run([*emulator, program], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "passed" in run.stdout
