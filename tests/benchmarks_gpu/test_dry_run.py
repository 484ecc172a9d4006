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
def test_every_kind_of_job_runs_and_reports_what_it_measured(tmp_path: Path) -> None:
    only = "ceilings,decode,ops,prefill,blocks,experts,latents,checks"
    options = ["--dry-run", "--only", only, "--results", str(tmp_path), "--minutes", "9"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    jobs = list(dict.fromkeys(name for line in lines for name in line))
    engines = ["bf16", "blocks", "experts", "experts_int4", "latents"]
    assert jobs == ["ceilings", "compile", *engines, "checks"]
    assert document_of(tmp_path)["results"]["blocks"]["products"][0]["format"] == "Q4_0"
    engines = [line["bf16"] for line in lines if "bf16" in line]
    late = "not measured: the time was over"
    assert engines[0]["problems"] == dict.fromkeys(("decode", "ops", "prefill"), late)
    assert [run["batch"] for run in engines[1]["decode"]] == [1, 2]  # told before the rest
    assert engines[-1]["problems"] == {}
    document = document_of(tmp_path)
    assert document["results"]["problems"] == {}
    assert document["results"]["checks"]["passed"] > 0
    assert document["results"]["compile"]["kernels"] == 2


def document_of(folder: Path) -> Any:
    (document,) = (json.loads(path.read_text()) for path in folder.glob("*.json"))
    return document
