"""The script from its command line to its files, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_an_engine_is_measured_and_tells_what_it_has_so_far(tmp_path: Path) -> None:
    lines = run(tmp_path, "ceilings,decode,ops,prefill,blocks")
    assert jobs_of(lines) == ["ceilings", "compile", "bf16", "blocks"]
    engines = [line["bf16"] for line in lines if "bf16" in line]
    late = "not measured: the time was over"
    assert engines[0]["problems"] == dict.fromkeys(("decode", "ops", "prefill"), late)
    assert [each["batch"] for each in engines[1]["decode"]] == [1, 2]  # told before the rest
    assert engines[-1]["problems"] == {}
    results = document_of(tmp_path)["results"]
    assert results["problems"] == {}
    assert results["blocks"]["products"][0]["format"] == "Q4_0"
    assert results["compile"]["kernels"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("only", "engines"), [("experts", ["experts", "experts_int4"]), ("latents", ["latents"])]
)
def test_other_kinds_of_models_are_measured(only: str, engines: list[str], tmp_path: Path) -> None:
    assert jobs_of(run(tmp_path, only)) == ["ceilings", "compile", *engines]
    assert document_of(tmp_path)["results"]["problems"] == {}


@pytest.mark.slow
def test_the_tests_of_the_device_are_run(tmp_path: Path) -> None:
    assert jobs_of(run(tmp_path, "checks")) == ["checks"]
    results = document_of(tmp_path)["results"]
    assert results["problems"] == {}
    assert results["checks"]["passed"] > 0


def run(folder: Path, only: str) -> list[dict[str, Any]]:
    """What the script prints of each job, in order."""
    options = ["--dry-run", "--only", only, "--results", str(folder), "--minutes", "10"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def jobs_of(lines: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line))


def document_of(folder: Path) -> Any:
    (document,) = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    return document
