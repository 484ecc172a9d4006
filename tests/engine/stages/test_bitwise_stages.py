"""Stages in processes of their own give a request the bits that one process gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from support.bitwise import Requests, Served, growing, prompt, run, served
from support.checkpoints import tiny_checkpoint
from support.gptq_checkpoints import gptq_checkpoint
from support.needs import needs_native

from penstock import LLM, PoolingParams, SamplingParams, StructuredOutputsParams

REQUESTS: Final = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 33, 70))],
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=7, max_tokens=10, ignore_eos=True, logprobs=3),
)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def dense(folder: Path, layers: int = 4, **options: Any) -> Served:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 307,
        "hidden_size": 72,
        "intermediate_size": 104,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": layers % 2 == 1,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }
    return served(folder, config, **{"max_model_len": 256, "max_num_seqs": 8, **options})


def check(model: Served, *counts: int, **options: Any) -> None:
    """Also where prompts are computed in chunks, and from cached prefixes."""
    with model.start(enable_prefix_caching=False, **options) as one:
        expected = REQUESTS.together(one)
    for count in counts:
        with model.start(pipeline_parallel=count, max_num_batched_tokens=16, **options) as several:
            assert several.config.pipeline_parallel == count
            assert REQUESTS.together(several) == expected
            before = several.stats().prefix_hits
            assert REQUESTS.together(several) == expected
            assert several.stats().prefix_hits > before
            several.check_integrity()


@pytest.mark.parametrize(("layers", "count"), [(4, 2), (5, 3), slow(4, 4), slow(3, 2)])
def test_on_the_cpu(tmp_path: Path, layers: int, count: int) -> None:
    check(dense(tmp_path, layers), count)


@pytest.mark.parametrize(("layers", "count"), [(5, 2), (4, 3)])
def test_on_the_reference_backend(tmp_path: Path, layers: int, count: int) -> None:
    check(dense(tmp_path, layers), count, backend="reference")


@pytest.mark.slow
def test_threads_of_stages(tmp_path: Path) -> None:
    check(dense(tmp_path), 2, threads=4)


@pytest.mark.parametrize("count", [2, slow(3)])
def test_preemption(tmp_path: Path, count: int) -> None:
    model, requests = dense(tmp_path), growing(6, max_tokens=100)
    with model.start() as one:
        expected = requests.alone(one)
    planned = model.planned(pipeline_parallel=count, max_model_len=160).config
    block = planned.kv_cache_bytes // planned.num_blocks
    options: dict[str, Any] = {"kv_cache_bytes": 12 * block, "max_model_len": 160}
    with model.start(pipeline_parallel=count, **options) as several:
        assert requests.together(several) == expected
        assert several.stats().preemptions > 0
        several.check_integrity()


@pytest.mark.parametrize("backend", ["cpu", slow("reference")])
def test_forks_reports_of_prompts_and_embeddings(tmp_path: Path, backend: str) -> None:
    model, tokens = dense(tmp_path), [prompt(seed, 45, 256) for seed in (1, 2)]
    forked = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, logprobs=2)
    reported = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2)
    found = []
    for count in (1, 3):
        with model.start(backend=backend, pipeline_parallel=count) as llm:
            (output,) = llm.generate([{"prompt_token_ids": tokens[0]}], reported)
            mean = PoolingParams(pooling="mean")
            embedded = llm.embed([{"prompt_token_ids": t} for t in tokens], mean)
            vectors = [each.embedding.tolist() for each in embedded]
            found.append((run(llm, tokens, forked), output.prompt_logprobs, vectors))
    assert found[0] == found[1]


@needs_native
def test_grammars() -> None:
    """Who has a grammar waits for its mask, and holds up nobody who has none."""
    constrained = [
        SamplingParams(
            temperature=temperature,
            seed=5,
            max_tokens=12,
            logprobs=2,
            structured_outputs=StructuredOutputsParams(regex="[a-f]{3,8}( [0-9]+)*"),
        )
        for temperature in (0, 1.0)
    ]
    free = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
    prompts = [prompt(seed, 9, 200) for seed in range(4)]
    found = []
    for count in (1, 3):
        with LLM(backend="cpu", threads=1, pipeline_parallel=count) as llm:
            found.append(run(llm, prompts, [*constrained, free, free]))
            llm.check_integrity()
    assert found[0] == found[1]


def stored(folder: Path, **options: Any) -> Served:
    """A model with weights of its own."""
    return Served(folder, {"load_format": "auto", "artifact": False, **options})


@pytest.mark.parametrize(
    ("quantization", "kv_cache"),
    [("int4", "int4"), slow("int8", "auto"), slow("int4", "int8"), slow("int4", "k8v4")],
)
def test_quantized_by_what_a_text_says(quantization: str, kv_cache: str) -> None:
    """Columns and keys are scaled, by factors of the layers that a stage has."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    folder = tiny_checkpoint(
        "qwen3", dtype="bfloat16", vocab_size=512, num_hidden_layers=3, **sizes
    )
    model = stored(folder, quantization=quantization, kv_cache_dtype=kv_cache)
    assert model.planned().config.quantization_calibration
    check(model, 2)


@pytest.mark.parametrize(
    "family",
    [
        "qwen3_moe",
        "deepseek_v3",
        "qwen3_next",
        *map(slow, ("lfm2", "gemma3", "gpt_oss", "granitemoehybrid", "mixtral", "olmo2")),
    ],
)
def test_families(family: str) -> None:
    check(stored(tiny_checkpoint(family)), 2)


@pytest.mark.slow
def test_a_quantized_checkpoint(tmp_path: Path) -> None:
    folder, _ = gptq_checkpoint(tmp_path, sym=False, shuffled=True, desc_act=True)
    check(stored(folder), 2)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_that_are_rounded(quantization: str) -> None:
    check(stored(tiny_checkpoint("qwen3_moe"), quantization=quantization), 2)
