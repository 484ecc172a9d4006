"""``benchmarks/host_side.py`` measures every phase of a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PHASES = {"schedule", "build", "sample", "update", "encode", "front", "engine"}


@pytest.mark.slow
def test_every_phase_takes_time(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [sys.executable, "host_side.py", "--requests", "2", "--repeats", "1", "--numpy"]
    path = ":".join(entry for entry in sys.path if entry)
    subprocess.run(
        [*command, "--json", str(found)], cwd=BENCHMARKS, env={"PYTHONPATH": path}, check=True
    )
    phases = json.loads(found.read_text())["2"]
    assert set(phases) == PHASES
    assert all(microseconds > 0 for microseconds in phases.values())
