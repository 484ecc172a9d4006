"""On the reference backend too, a request gives the same bits whatever else runs.

The models are those whose products are not plain ones: rows that meet at an expert, and columns
that are gathered in the order of their groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.gptq_checkpoints import gptq_checkpoint

from penstock import LLM, SamplingParams

PROMPTS = [
    [int(t) for t in np.random.default_rng(seed).integers(0, 256, length)]
    for seed, length in enumerate((1, 2, 9, 17, 40, 64))
]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True, logprobs=4)


@pytest.fixture(scope="module", params=["experts", "shuffled columns"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "experts":
        return tiny_checkpoint("qwen3_moe")
    form: dict[str, Any] = {"bits": 4, "group": 32, "sym": False, "shuffled": True}
    return gptq_checkpoint(tmp_path_factory.mktemp("gptq"), desc_act=True, **form)[0]


def start(model: Path, **options: Any) -> LLM:
    return LLM(str(model), backend="reference", dtype="float32", kv_cache_bytes=1 << 22, **options)


def bits(llm: LLM, prompts: list[list[int]]) -> list[tuple[tuple[int, ...], Any]]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], PARAMS)
    return [(tuple(o.outputs[0].token_ids), o.outputs[0].logprobs) for o in outputs]


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[list[Any]]:
    with start(model, enable_prefix_caching=False) as llm:
        yield [bits(llm, [p])[0] for p in PROMPTS]


def test_together(model: Path, alone: list[Any]) -> None:
    with start(model, enable_prefix_caching=False) as llm:
        assert bits(llm, PROMPTS) == alone


def test_in_chunks(model: Path, alone: list[Any]) -> None:
    with start(model, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        assert bits(llm, PROMPTS) == alone
        assert bits(llm, PROMPTS) == alone
        assert llm.stats().prefix_hits > 0


@pytest.mark.parametrize("quantize_activations", [True, False])
def test_shuffled_columns_with_both_kinds_of_activations(
    tmp_path: Path, quantize_activations: bool
) -> None:
    form: dict[str, Any] = {"bits": 8, "group": 32, "sym": False, "shuffled": True}
    folder = gptq_checkpoint(tmp_path, desc_act=True, **form)[0]
    with start(
        folder, quantize_activations=quantize_activations, enable_prefix_caching=False
    ) as llm:
        assert bits(llm, PROMPTS) == [bits(llm, [p])[0] for p in PROMPTS]
