"""Ranks of the cuda backend in processes of their own, joined by Gloo and interpreted: all but GPUs
and NCCL is as it is there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.needs import Need, lacking
from support.waiting import descendants_of

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

import penstock
from penstock import LLM, SamplingParams
from penstock.errors import EngineDeadError
from penstock.speculative_config import Ngram

pytestmark = pytest.mark.slow

DRAFT = Path(penstock.__file__).parent / "demo" / "draft"
SMALL: dict[str, Any] = {
    "backend": "cuda",
    "dtype": "float32",
    "max_num_seqs": 1,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
}
PROMPT = "import os"
PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


@pytest.fixture(autouse=True)
def interpreted(device: Any) -> None:
    if device.type != "cpu":
        lacking(Need.INTERPRETER, "with GPUs, tests/cuda has ranks")


def tokens(**options: Any) -> list[int]:
    with LLM(str(DRAFT), **SMALL, **options) as llm:
        (output,) = llm.generate([PROMPT], PARAMS)
        return list(output.outputs[0].token_ids)


@pytest.mark.parametrize("options", [{}, {"quantization": "int4", "speculative": Ngram()}])
def test_processes_say_what_one_says(options: dict[str, Any]) -> None:
    assert tokens(tensor_parallel=2, **options) == tokens(**options)


def test_a_rank_that_is_killed_ends_the_engine_with_its_cause() -> None:
    before = descendants_of(os.getpid())
    with LLM(str(DRAFT), tensor_parallel=2, **SMALL) as llm:
        (pid,) = (each for each in descendants_of(os.getpid()) if each not in before)
        stream = llm.stream([PROMPT], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        next(stream)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"rank 1 \(pid {pid}\) was ended by SIGKILL"):
            for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match=rf"\(pid {pid}\)"):
            llm.generate([PROMPT], PARAMS)
