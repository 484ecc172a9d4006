"""``penstock quantize`` that is killed, wherever it is, and run again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native

KILLS = 8


def command(model: Path, text: Path, out: Path, method: str, more: Sequence[str] = ()) -> list[str]:
    words = ["--method", method, "--bits", 4, "--group-size", 32, "--calibration", text]
    words += ["--samples", 48, "--sample-length", 128, "--threads", 1]
    return [sys.executable, "-m", "penstock", "quantize", str(model), "--out", str(out)] + [
        *(str(word) for word in words),
        *more,
    ]


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"), [("gptq", ()), ("awq", ()), ("awq", ("--fine-tune", "30"))]
)
def test_killed_runs_end_with_the_bytes_of_one_that_was_not(
    method: str, more: Sequence[str], tmp_path: Path
) -> None:
    """SIGKILL comes within a layer, between files, while training, or before anything is read."""
    if more:
        pytest.importorskip("torch")
    model = tiny_checkpoint("qwen3", dtype="bfloat16", intermediate_size=96, num_hidden_layers=10)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"{n * n} of {n}" for n in range(4000)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    subprocess.run(command(model, text, whole, method, more), check=True, capture_output=True)
    took = time.monotonic() - began

    for seconds in np.random.default_rng(5).uniform(0.3, 1.0, KILLS) * took:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command(model, text, killed, method, more),
                check=True,
                capture_output=True,
                timeout=seconds,  # after which it is killed
            )
        if killed.exists():
            break
    else:
        subprocess.run(command(model, text, killed, method, more), check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    assert not (tmp_path / "killed.partial").exists()
