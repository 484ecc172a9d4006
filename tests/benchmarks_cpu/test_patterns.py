"""The command that loads servers beside each other, as far as it goes without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATTERNS = Path(__file__).parents[2] / "benchmarks" / "cpu" / "patterns.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engines", "no"], "there is no engine 'no'; there are penstock"),
        (["--rounds", "0"], "--rounds: not a positive integer: '0'"),
    ],
)
def test_bad_options(arguments: list[str], message: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, str(PATTERNS), "--out", str(tmp_path), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
