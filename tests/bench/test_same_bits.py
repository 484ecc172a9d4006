"""``benchmarks/same_bits.py`` records outputs, and names every one that is not as before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.backends.cpu import native

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SETUPS = ("bfloat16", "int4 group-32")

pytestmark = pytest.mark.skipif(not native.built(), reason="the native library was not built")


def same_bits(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = ":".join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "same_bits.py", *map(str, arguments)],
        cwd=BENCHMARKS,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def record(file: Path, model: Path, threads: int) -> list[dict[str, Any]]:
    asked = ("--models", model, "--threads", threads, "--setups", *SETUPS)
    found = same_bits("record", file, *asked)
    assert found.returncode == 0, found.stderr
    records: list[dict[str, Any]] = json.loads(file.read_text())
    return records


@pytest.mark.slow
def test_two_runs_are_the_same_and_a_change_is_named(tiny_model: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    records = record(before, tiny_model, threads=1)
    record(after, tiny_model, threads=3)
    assert {r["setup"] for r in records} == set(SETUPS)
    assert len({r["digest"] for r in records}) > len(SETUPS) * 10
    assert all(r["isa"] and r["versions"]["penstock"] for r in records)
    same = same_bits("compare", before, after)
    assert (same.returncode, "0 differences" in same.stdout) == (0, True), same.stdout

    changed = next(r for r in records if (r["setup"], r["request"]) == (SETUPS[1], "sampled"))
    changed["outputs"]["outputs"][0]["token_ids"][3] ^= 1
    changed["digest"] = "another"
    missing = records.pop(0)
    after.write_text(json.dumps(records))
    different = same_bits("compare", before, after)
    assert different.returncode == 1
    named = [line for line in different.stdout.splitlines() if " / " in line]
    assert len(named) == 2
    assert f"{SETUPS[0]} / {missing['request']}: only in the first" in different.stdout
    assert f"{SETUPS[1]} / sampled: outputs[0].token_ids[3] " in different.stdout


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    found = same_bits("record", tmp_path / "out.json", "--models", tmp_path / "nothing")
    assert found.returncode == 1
    assert "is neither demo, nor 1b, nor a folder with a config.json" in found.stderr


def test_an_unknown_setup_records_nothing(tiny_model: Path, tmp_path: Path) -> None:
    found = same_bits("record", tmp_path / "out.json", "--models", tiny_model, "--setups", "int3")
    assert found.returncode == 1
    assert "has no setup 'int3'; it has: bfloat16, float32" in found.stdout
