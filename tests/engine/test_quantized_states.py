"""Quantized models whose layers keep states or convolve: the same bits, however a prompt is cut, in
any company, found in the cache, preempted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine

pytest.importorskip("torch", reason="checkpoints are made with it")
pytest.importorskip("transformers", reason="checkpoints are made with it")

FAMILIES = [
    *("qwen3_next", "qwen3_5_text", "granitemoehybrid", "nemotron_h", "mamba2", "bamba", "lfm2")
]
SCHEMES: dict[str, dict[str, Any]] = {
    "int8": {"quantization": "int8", "quantize_activations": True},
    "int8 weights": {"quantization": "int8", "quantize_activations": False},
    "int4": {"quantization": "int4"},
    "int4 groups of 32": {"quantization": "int4", "quantization_group": 32},
}
LENGTHS = (1, 3, 31, 33, 70, 96)
PROMPTS = [np.random.default_rng(i).integers(0, 256, n).tolist() for i, n in enumerate(LENGTHS)]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=8, ignore_eos=True, logprobs=2)


def start(folder: Path, scheme: str, **options: Any) -> LLM:
    require_native()
    usual = {"kv_cache_bytes": 1 << 22, "max_num_seqs": 8, "threads": 1, "dtype": "bfloat16"}
    return LLM(str(folder), backend="cpu", artifact=False, **(SCHEMES[scheme] | usual | options))


def bits(llm: LLM, prompts: list[list[int]], params: SamplingParams = PARAMS) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    return [[(tuple(c.token_ids), c.logprobs) for c in o.outputs] for o in outputs]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_each_prompt_alone(family: str, scheme: str) -> None:
    folder = tiny_checkpoint(family)
    with start(folder, scheme) as llm:
        alone = [bits(llm, [prompt])[0] for prompt in PROMPTS]
    with start(folder, scheme, threads=2) as llm:
        assert bits(llm, PROMPTS[::-1]) == alone[::-1]
        before = llm.stats().prefix_hits
        assert bits(llm, PROMPTS) == alone
        assert llm.stats().prefix_hits - before >= 32 + 64 + 64
    with start(folder, scheme, max_num_batched_tokens=23, max_num_seqs=4) as llm:
        assert bits(llm, PROMPTS) == alone


@pytest.mark.thinned(3)
@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "mamba2"])
def test_preempted_sequences_go_on(family: str, scheme: str) -> None:
    folder = tiny_checkpoint(family)
    prompts = [np.random.default_rng(50 + i).integers(0, 256, 85 + i).tolist() for i in range(5)]
    long = SamplingParams(temperature=0.8, seed=1, max_tokens=165, ignore_eos=True, logprobs=1)
    with start(folder, scheme) as llm:
        expected = bits(llm, prompts, long)
    planned = plan_engine(
        EngineConfig(model=str(folder), backend="cpu", dtype="bfloat16", **SCHEMES[scheme])
    )
    states = 4 * planned.config.state_bytes
    tight = max(states + 13 * planned.plan.kv_groups.page_bytes, 2 * states)
    options = {"max_num_seqs": 4, "enable_prefix_caching": False}
    with start(folder, scheme, kv_cache_bytes=tight, **options) as llm:
        assert bits(llm, prompts, long) == expected
        assert llm.stats().preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_long_prompts_in_chunks(family: str, scheme: str) -> None:
    """A prompt of 8,192 tokens is computed, then again with another end."""
    positions = {} if family == "mamba2" else {"max_position_embeddings": 8400}
    folder = tiny_checkpoint(family, **positions)
    prompt = np.random.default_rng(1).integers(0, 256, 8192).tolist()
    other = [*prompt[:5000], *np.random.default_rng(2).integers(0, 256, 300).tolist()]
    roomy = {"kv_cache_bytes": 1 << 25, "max_num_seqs": 2, "max_model_len": 8300}
    with start(folder, scheme, max_num_batched_tokens=512, threads=2, **roomy) as llm:
        first, second = bits(llm, [prompt]), bits(llm, [other])
        assert llm.stats().prefix_hits > 0
        assert bits(llm, [prompt, other]) == first + second
    options = {"max_num_batched_tokens": 177, "enable_prefix_caching": False}
    with start(folder, scheme, **options, **roomy) as llm:
        assert bits(llm, [other, prompt]) == second + first
