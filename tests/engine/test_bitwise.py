"""A row never depends on its neighbours: the same request gives the same bits, whatever else runs.

Log-probabilities are compared with ``==``: a float32 logit that differs in its last bit fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import require_native

from penstock import LLM, RequestOutput, SamplingParams
from penstock.cache.geometry import KvDType, layer_block_bytes

VOCABULARY = 500


@dataclass(frozen=True)
class Model:
    folder: Path
    kv_dtype: KvDType


MODELS: list[tuple[str, KvDType, int]] = [
    ("float32", "float32", 40),
    ("bfloat16", "bfloat16", 40),
    ("float16", "float16", 40),
    ("float32", "int8", 40),
    ("bfloat16", "int8", 40),
    ("bfloat16", "int8", 64),
]
"""Types of weights and cache, and the size of a head."""
INT8_MODELS = [model for model in MODELS if model[1] == "int8"]


def name(param: object) -> str | None:
    return " ".join(map(str, param)) if isinstance(param, tuple) else None


@pytest.fixture(scope="module", params=MODELS, ids=name)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A folder with a configuration only: widths, and head sizes but for the last, that fill no
    tile evenly."""
    dtype, kv_dtype, head_dim = request.param
    folder = tmp_path_factory.mktemp("model")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 200,
        "intermediate_size": 344,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": dtype,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return Model(folder, kv_dtype)


def start(model: Model, **options: Any) -> LLM:
    options = {"max_num_batched_tokens": 256, "max_model_len": 1024, "threads": 1} | options
    require_native()
    return LLM(
        model=str(model.folder),
        load_format="dummy",
        backend="cpu",
        kv_cache_dtype=model.kv_dtype,
        **options,
    )


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[LLM]:
    with start(model, enable_prefix_caching=False) as llm:
        yield llm


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, VOCABULARY, length)]


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 31, 32, 33, 100, 300, 611))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=5),
    SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=24, ignore_eos=True, logprobs=5),
]


def run(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], params)


def bits(output: RequestOutput) -> list[tuple[tuple[int, ...], Any]]:
    """Everything that a request reports, floats and all."""
    return [(tuple(c.token_ids), c.logprobs) for c in output.outputs]


def alone(llm: LLM) -> list[Any]:
    return [bits(run(llm, [p], [s])[0]) for p in PROMPTS for s in PARAMS]


def together(llm: LLM) -> list[Any]:
    pairs = [(p, s) for p in PROMPTS for s in PARAMS]
    return [bits(o) for o in run(llm, [p for p, _ in pairs], [s for _, s in pairs])]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    return alone(plain)


@pytest.mark.thinned(3)
def test_among_32_strangers(plain: LLM, expected: list[Any]) -> None:
    strangers = [prompt(1000 + i, 1 + 13 * i) for i in range(32)]
    busy = [SamplingParams(seed=i, max_tokens=8 + i, ignore_eos=True) for i in range(32)]
    for i, wanted in enumerate(expected[-6:], start=len(expected) - 6):
        mine, params = PROMPTS[i // len(PARAMS)], PARAMS[i % len(PARAMS)]
        where = (7 * i) % 33
        prompts = [*strangers[:where], mine, *strangers[where:]]
        output = run(plain, prompts, [*busy[:where], params, *busy[where:]])[where]
        assert bits(output) == wanted


@pytest.mark.thinned(5)
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


@pytest.mark.thinned(5)
def test_preemption(model: Model, plain: LLM) -> None:
    prompts = [prompt(50 + i, 20 + i) for i in range(8)]
    params = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=110, ignore_eos=True, logprobs=2)
        for i in range(8)
    ]
    expected = [bits(run(plain, [p], [s])[0]) for p, s in zip(prompts, params, strict=True)]
    config = json.loads((model.folder / "config.json").read_text())
    block = 3 * layer_block_bytes(model.kv_dtype, 3, config["head_dim"])
    # Eight sequences grow from one block to five each; sixteen blocks hold three of them.
    with start(model, kv_cache_bytes=16 * block, max_model_len=200) as llm:
        assert [bits(o) for o in run(llm, prompts, params)] == expected
        assert llm.stats().preemptions > 0
        llm.check_integrity()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads(model: Model, expected: list[Any], threads: int) -> None:
    with start(model, threads=threads) as llm:
        assert together(llm) == expected


def test_sequences_of_one_prompt_equal_themselves_in_company(plain: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
    lone = bits(run(plain, [PROMPTS[4]], [params])[0])
    assert len({lone_tokens for lone_tokens, _ in lone}) == 3
    crowd = run(plain, PROMPTS, [params] * len(PROMPTS))
    assert bits(crowd[4]) == lone


@pytest.mark.parametrize("model", INT8_MODELS, indirect=True, ids=name)
def test_an_int8_cache_changes_the_result(model: Model, plain: LLM) -> None:
    """Or the tests above would show nothing of it."""
    with start(Model(model.folder, "float32")) as exact:
        (a,), (b,) = (bits(run(llm, [PROMPTS[5]], [PARAMS[0]])[0]) for llm in (exact, plain))
    assert a[1] != b[1]


def test_prompts_are_reported_in_as_many_steps_as_logits_have_room_for(model: Model) -> None:
    """Of 600 tokens a step, 258 may have logits; a step of 64 has room for those of all."""
    tokens = np.random.default_rng(5).integers(1, VOCABULARY, 700).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=2)
    reported = []
    for budget in (600, 64):
        with start(model, max_num_seqs=2, max_num_batched_tokens=budget) as llm:
            (output,) = llm.generate([{"prompt_token_ids": tokens}], params)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(tokens)
        reported.append((output.prompt_logprobs, output.outputs[0].token_ids))
    assert reported[0] == reported[1]
