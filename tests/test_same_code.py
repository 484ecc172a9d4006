"""``.ci/same_code``, which compares the machine code of two builds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.needs import Need

SCRIPT = Path(__file__).parents[1] / ".ci/same_code"
COMPILER = shutil.which("g++")
BEFORE = """
    struct Sizes { long first, second; };
    long sum(const long* x) { long s = 0; for (long i = 0; i < 9; ++i) s += x[i]; return s; }
    long second(const Sizes& s) { return s.second * 3; }
    long scaled(long x) { return x * 12345 + 1; }
"""
AFTER = """
    struct Sizes { long zeroth, first, second; };
    long total(const long* x) { long s = 0; for (long i = 0; i < 9; ++i) s += x[i]; return s; }
    long second(const Sizes& s) { return s.second * 3; }
    long scaled(long x) { return x / 7 + 1; }
    long more(long x) { return x - 5; }
"""


@pytest.mark.skipif(COMPILER is None, reason=Need.PROGRAM.reason("a C++ compiler"))
@pytest.mark.skipif(shutil.which("objdump") is None, reason=Need.PROGRAM.reason("objdump"))
def test_functions_of_two_builds(tmp_path: Path) -> None:
    assert COMPILER is not None
    for name, source in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "it.cpp").write_text(source)
        command = [COMPILER, "-O2", "-c", f"{name}/it.cpp", "-o", f"{name}/it.o"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=60)

    def verdicts(*arguments: str) -> tuple[int, dict[str, str]]:
        command = [sys.executable, str(SCRIPT), *arguments]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        lines = [line.split(maxsplit=1) for line in run.stdout.splitlines()]
        return run.returncode, {name.split("(")[0]: verdict for verdict, name in lines}

    code, said = verdicts("before", "after")
    assert code == 1
    assert said == {
        "sum": "same",
        "second": "moved",
        "scaled": "differs",
        "more": "new",
    }
    assert verdicts("before/it.o", "before/it.o")[0] == 0
    assert verdicts("before", "after", "--only", "^(second|sum|total)") == (
        0,
        {"sum": "same", "second": "moved"},
    )
    assert verdicts("before", "after", "--only", "sum|total", "--rename", "sum=more")[0] == 0
