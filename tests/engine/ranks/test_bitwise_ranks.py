"""Ranks in processes of their own give a request the bits that one process gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from support.bitwise import Requests, Served, growing, prompt, run, served
from support.checkpoints import tiny_checkpoint
from support.gptq_checkpoints import gptq_checkpoint

from penstock import PoolingParams, SamplingParams

REQUESTS: Final = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 33, 70))],
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=7, max_tokens=10, ignore_eos=True, logprobs=3),
)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def dense(folder: Path, heads: tuple[int, int], **options: Any) -> Served:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 307,
        "hidden_size": 72,
        "intermediate_size": 104,
        "num_hidden_layers": 2,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }
    return served(folder, config, **{"max_model_len": 256, "max_num_seqs": 8, **options})


def check(model: Served, *worlds: int, **options: Any) -> None:
    """Also where prompts are computed in chunks, and from cached prefixes."""
    with model.start(enable_prefix_caching=False, **options) as one:
        expected = REQUESTS.together(one)
    for world in worlds:
        with model.start(tensor_parallel=world, max_num_batched_tokens=16, **options) as several:
            assert several.config.tensor_parallel == world
            assert REQUESTS.together(several) == expected
            before = several.stats().prefix_hits
            assert REQUESTS.together(several) == expected
            assert several.stats().prefix_hits > before
            several.check_integrity()


@pytest.mark.parametrize(
    ("heads", "world"),
    [
        ((8, 8), 2),
        ((8, 8), 3),
        ((9, 3), 4),
        slow((8, 8), 4),
        slow((8, 8), 8),
        slow((9, 3), 2),
        slow((9, 3), 3),
        slow((9, 3), 8),
        slow((8, 1), 8),
    ],
)
def test_on_the_cpu(tmp_path: Path, heads: tuple[int, int], world: int) -> None:
    check(dense(tmp_path, heads), world)


@pytest.mark.parametrize(
    ("heads", "world"),
    [((8, 8), 2), ((9, 3), 4), slow((8, 8), 3), slow((8, 8), 4), slow((8, 8), 8), slow((9, 3), 8)],
)
def test_on_the_reference_backend(tmp_path: Path, heads: tuple[int, int], world: int) -> None:
    check(dense(tmp_path, heads), world, backend="reference")


@pytest.mark.parametrize("world", [2, slow(3)])
def test_threads_of_ranks(tmp_path: Path, world: int) -> None:
    check(dense(tmp_path, (8, 4)), world, threads=2 * world)


@pytest.mark.parametrize("world", [2, slow(3)])
def test_preemption(tmp_path: Path, world: int) -> None:
    model, requests = dense(tmp_path, (8, 4)), growing(6, max_tokens=100)
    with model.start() as one:
        expected = requests.alone(one)
    planned = model.planned(tensor_parallel=world, max_model_len=160).config
    block = planned.kv_cache_bytes // planned.num_blocks
    options: dict[str, Any] = {"kv_cache_bytes": 12 * block, "max_model_len": 160}
    with model.start(tensor_parallel=world, **options) as several:
        assert requests.together(several) == expected
        assert several.stats().preemptions > 0
        several.check_integrity()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_forks_reports_of_prompts_and_embeddings(tmp_path: Path, backend: str) -> None:
    model, tokens = dense(tmp_path, (8, 4)), [prompt(seed, 45, 256) for seed in (1, 2)]
    forked = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, logprobs=2)
    reported = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2)
    found = []
    for world in (1, 3):
        with model.start(backend=backend, tensor_parallel=world) as llm:
            (output,) = llm.generate([{"prompt_token_ids": tokens[0]}], reported)
            mean = PoolingParams(pooling="mean")
            embedded = llm.embed([{"prompt_token_ids": t} for t in tokens], mean)
            vectors = [each.embedding.tolist() for each in embedded]
            found.append((run(llm, tokens, forked), output.prompt_logprobs, vectors))
    assert found[0] == found[1]


def stored(folder: Path, **options: Any) -> Served:
    """A model with weights of its own."""
    return Served(folder, {"load_format": "auto", "artifact": False, **options})


@pytest.mark.parametrize(
    ("quantization", "kv_cache", "world"),
    [
        ("int8", "auto", 2),
        ("int4", "int4", 2),
        slow("int4", "int8", 3),
        slow("int8", "int4", 4),
        slow("int4", "k8v4", 2),
    ],
)
def test_quantized_by_what_a_text_says(quantization: str, kv_cache: str, world: int) -> None:
    """Columns and keys are scaled, by factors that are of all columns and all heads."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    folder = tiny_checkpoint("qwen3", dtype="bfloat16", vocab_size=512, **heads)
    model = stored(folder, quantization=quantization, kv_cache_dtype=kv_cache)
    assert model.planned().config.quantization_calibration
    check(model, world)


@pytest.mark.parametrize(
    ("family", "worlds"),
    [
        ("qwen3_moe", [2]),
        ("deepseek_v3", [3]),
        slow("mixtral", [2, 4]),
        slow("gpt_oss", [2]),
        slow("gemma3", [2]),
        slow("olmo2", [2, 3]),
        slow("qwen3_next", [2]),
        slow("granitemoehybrid", [2]),
        slow("lfm2", [2, 4]),
    ],
)
def test_families(family: str, worlds: list[int]) -> None:
    check(stored(tiny_checkpoint(family)), *worlds)


@pytest.mark.slow
def test_a_quantized_checkpoint(tmp_path: Path) -> None:
    folder, _ = gptq_checkpoint(tmp_path, sym=False, shuffled=True, desc_act=True)
    check(stored(folder), 2)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_that_are_rounded(quantization: str) -> None:
    check(stored(tiny_checkpoint("qwen3_moe"), quantization=quantization), 2)
