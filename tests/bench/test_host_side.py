"""``benchmarks/host_side.py`` measures every phase of a step."""

from __future__ import annotations

import importlib
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


@pytest.mark.parametrize("words", [["0"], ["2", "path/to/model"], ["1000000"]])
def test_numbers_of_requests_that_cannot_be(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    host_side = importlib.import_module("host_side")
    monkeypatch.setattr(sys, "argv", ["host_side.py", "--requests", *words])
    with pytest.raises(SystemExit) as stop:
        host_side.main()
    assert stop.value.code == 2
    assert f"not a number of requests from 1 to 4096: {words[-1]!r}" in capsys.readouterr().err


def test_windows_begin_when_every_request_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    host_side = importlib.import_module("host_side")
    greedy = host_side.SAMPLING["greedy"]
    bench = host_side.HostBench("", 40, greedy, prompt=100, native=False)
    running = bench.core._scheduler.running
    assert len(running) == 40
    assert all(sequence.num_output_tokens for sequence in running)
