"""After warming up no step compiles anything, whatever its size and whatever it samples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

NONE = ("none", None, False)
CASES = [
    # model (+ rank of adapters), weights, quantization (kind, group, of activations too), cache,
    # compute capability
    ("llama-3.1-8b", "bfloat16", ("int8", None, True), "bfloat16", (9, 0)),
    ("llama-3.1-8b", "bfloat16", NONE, "int8", (9, 0)),
    ("llama-3.1-8b", "bfloat16", ("int4", None, True), "bfloat16", (8, 0)),
    ("llama-3.2-1b", "bfloat16", ("int4", 128, False), "bfloat16", (8, 9)),
    ("llama-3.2-1b", "bfloat16", ("int4", 32, True), "bfloat16", (12, 0)),
    ("moe-5b-a1b", "bfloat16", NONE, "bfloat16", (9, 0)),
    ("moe-5b-a1b", "bfloat16", ("int4", 128, True), "bfloat16", (8, 0)),
    ("moe-5b-a1b", "bfloat16", ("int8", None, True), "bfloat16", (9, 0)),
    ("youtu-llm-2b", "bfloat16", NONE, "int8", (9, 0)),
    ("tiny-latents", "float32", NONE, "float32", (8, 0)),
    ("tiny", "bfloat16", NONE, "bfloat16", (10, 0)),
    ("tiny", "float16", ("int8", None, False), "float16", (8, 0)),
    ("tiny", "float32", ("int8", 32, True), "float32", (9, 0)),
    ("llama-3.2-1b+16", "bfloat16", NONE, "bfloat16", (9, 0)),
    ("tiny+20", "float16", NONE, "float16", (8, 0)),
]


def run_program(name: str, *arguments: str, cache: Path) -> str:
    """What a program of this folder prints, with the interpreter off."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_INTERPRET": "0",
    }
    program = Path(__file__).with_name(name)
    done = subprocess.run(
        [sys.executable, str(program), *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_no_step_compiles_anything(tmp_path: Path) -> None:
    printed = run_program("compiled_steps.py", json.dumps(CASES), cache=tmp_path)
    for case, line in zip(CASES, printed.splitlines(), strict=True):
        assert json.loads(line) == {}, case
