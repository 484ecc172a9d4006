"""Models with attention over latents: the same bits, whatever else runs and however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.latents import CONFIG
from support.needs import require_native

from penstock import LLM, RequestOutput, SamplingParams
from penstock.cache.geometry import KvDType, latent_block_bytes
from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.plan.explain import explain

VOCABULARY = CONFIG["vocab_size"]


@dataclass(frozen=True)
class Model:
    folder: Path
    kv_dtype: KvDType
    backend: str = "cpu"


MODELS: list[tuple[str, KvDType, str]] = [
    ("float32", "float32", "cpu"),
    ("bfloat16", "bfloat16", "cpu"),
    ("float16", "float16", "cpu"),
    ("bfloat16", "int8", "cpu"),
    ("bfloat16", "bfloat16", "reference"),
]
"""Types of weights and cache, and the backend."""


def folder_of(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


@pytest.fixture(scope="module", params=MODELS, ids=" ".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    dtype, kv_dtype, backend = request.param
    folder = folder_of(tmp_path_factory.mktemp("model"), torch_dtype=dtype)
    return Model(folder, kv_dtype, backend)


def start(model: Model, **options: Any) -> LLM:
    options = {"max_num_batched_tokens": 256, "max_model_len": 512} | options
    if model.backend == "cpu":
        require_native()
        options = {"threads": 1} | options
    return LLM(
        model=str(model.folder),
        load_format="dummy",
        backend=model.backend,
        kv_cache_dtype=model.kv_dtype,
        **options,
    )


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[LLM]:
    with start(model, enable_prefix_caching=False) as llm:
        yield llm


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, VOCABULARY, length)]


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 31, 32, 33, 100, 290))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=14, ignore_eos=True, logprobs=3),
]


def run(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params)


def bits(output: RequestOutput) -> list[tuple[tuple[int, ...], Any]]:
    """Everything that a request reports, floats and all."""
    return [(tuple(c.token_ids), c.logprobs) for c in output.outputs]


def together(llm: LLM) -> list[Any]:
    pairs = [(p, s) for p in PROMPTS for s in PARAMS]
    return [bits(o) for o in run(llm, [p for p, _ in pairs], [s for _, s in pairs])]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    """Each request alone."""
    return [bits(run(plain, [p], [s])[0]) for p in PROMPTS for s in PARAMS]


@pytest.mark.parametrize("budget", [16, 4096])
def test_token_budget(model: Model, expected: list[Any], budget: int) -> None:
    with start(model, max_num_batched_tokens=budget, max_num_seqs=16) as llm:
        assert together(llm) == expected


def test_prefix_hits(model: Model, expected: list[Any]) -> None:
    with start(model) as llm:
        assert together(llm) == expected
        before = llm.stats().prefix_hits
        assert together(llm) == expected
        assert llm.stats().prefix_hits - before >= sum(
            (len(p) - 1) // 32 * 32 for p in PROMPTS
        ) * len(PARAMS)


def test_preemption(model: Model, plain: LLM) -> None:
    prompts = [prompt(50 + i, 20 + i) for i in range(6)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=80, ignore_eos=True, logprobs=2)
        for i in range(6)
    ]
    expected = [bits(run(plain, [p], [s])[0]) for p, s in zip(prompts, params, strict=True)]
    block = CONFIG["num_hidden_layers"] * latent_block_bytes(model.kv_dtype, 40, 8)
    # Six sequences grow from one block to four each; ten blocks hold three of them.
    with start(model, kv_cache_bytes=10 * block, max_model_len=200) as llm:
        assert [bits(o) for o in run(llm, prompts, params)] == expected
        assert llm.stats().preemptions > 0
        llm.check_integrity()


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model: Model, expected: list[Any], threads: int) -> None:
    if model.backend == "reference":
        threads = 1  # it has no more
    with start(model, threads=threads) as llm:
        assert together(llm) == expected


def test_drafts(model: Model, plain: LLM) -> None:
    prompts = [prompt(60 + i, 7) * (3 + i) for i in range(3)]
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.7, seed=3, max_tokens=40, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2, n=1),
    ]
    expected = [bits(run(plain, [p], [s])[0]) for p, s in zip(prompts, params, strict=True)]
    with start(model, speculative="ngram:num_tokens=4,adaptive=false") as llm:
        assert [bits(o) for o in run(llm, prompts, params)] == expected
        drafts = llm.stats().drafts
        assert drafts is not None
        assert drafts.draft_tokens >= 8


def test_memory_is_that_of_latents_and_rotated_keys(tmp_path: Path) -> None:
    """And not of keys and values: 48 numbers a token and layer, where 5 heads have 300."""
    require_native()
    folder = folder_of(tmp_path)
    for kv_dtype, row in (("bfloat16", 96), ("float32", 192), ("int8", 52)):
        plan = plan_engine(
            EngineConfig(
                model=str(folder), load_format="dummy", backend="cpu", kv_cache_dtype=kv_dtype
            )
        ).plan
        assert plan.kv_groups.page_bytes == 2 * 32 * row


def test_quantization_leaves_the_matrices_of_heads_as_they_are(tmp_path: Path) -> None:
    require_native()
    folder = folder_of(tmp_path)
    config = EngineConfig(
        model=str(folder), load_format="dummy", backend="cpu", quantization="int8", artifact=False
    )
    told = "matrices of single heads (HeadLinear) are not quantized: bfloat16"
    assert told in explain(plan_engine(config).plan)
    assert told not in explain(
        plan_engine(msgspec.structs.replace(config, quantization="none")).plan
    )
    with start(Model(folder, "bfloat16"), quantization="int8") as llm:
        one = together(llm)
        assert together(llm) == one
