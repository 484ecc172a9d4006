"""A trained model says what its author published for it, on every backend and instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.needs import needs_shared, require_native, shared

from penstock import LLM, SamplingParams
from penstock.backends.cpu.native import runnable

STORIES = "models/stories260k"
MODEL = shared(STORIES)

pytestmark = needs_shared(STORIES)

PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0, max_tokens=256)


def published() -> str:
    lines = (MODEL / "SOURCE.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removeprefix("> ") for line in lines if line.startswith("> "))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_published_text(backend: str) -> None:
    if backend == "cpu":
        require_native()
    with LLM(str(MODEL), backend=backend) as llm:
        (output,) = llm.generate(PROMPT, GREEDY)
    text = published()
    assert len(text) > 500
    assert (PROMPT + output.outputs[0].text).startswith(text)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("isa", runnable())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_instruction_set_begins_the_story(isa: str, dtype: str) -> None:
    """Each runs in a process of its own, since the choice is made once. Rounded weights may part
    ways later."""
    program = (
        "from penstock import LLM, SamplingParams\n"
        f"llm = LLM({str(MODEL)!r}, backend='cpu', dtype={dtype!r})\n"
        f"(output,) = llm.generate({PROMPT!r}, SamplingParams(temperature=0, max_tokens=24))\n"
        "print(output.outputs[0].text)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PENSTOCK_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    text = PROMPT + run.stdout.rstrip("\n")
    assert len(text) > 70
    assert published().startswith(text)
