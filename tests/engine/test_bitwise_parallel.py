"""Several processes give a request the bits that one process gives it, however a model is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from support.bitwise import Requests, Served, growing, prompt, run, served
from support.checkpoints import tiny_checkpoint
from support.cuts import Cut, ranks, stages
from support.gptq_checkpoints import gptq_checkpoint
from support.needs import needs_native

from penstock import LLM, PoolingParams, SamplingParams, StructuredOutputsParams

REQUESTS: Final = Requests.product(
    [prompt(seed, length, 256) for seed, length in enumerate((1, 33, 70))],
    SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=3),
    SamplingParams(temperature=0.9, seed=7, max_tokens=10, ignore_eos=True, logprobs=3),
)


BOTH: Final = Cut(ranks=2, stages=2)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def cuts(*cases: Any) -> Any:
    """Run a test with each of these."""
    return pytest.mark.parametrize("cut", cases, ids=str)


def dense(folder: Path, layers: int = 2, heads: tuple[int, int] = (8, 4), **options: Any) -> Served:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 307,
        "hidden_size": 72,
        "intermediate_size": 104,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
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


def check(model: Served, *several: Cut, **options: Any) -> None:
    """Also where prompts are computed in chunks, and from cached prefixes."""
    with model.start(enable_prefix_caching=False, **options) as one:
        expected = REQUESTS.together(one)
    for cut in several:
        with model.start(max_num_batched_tokens=16, **cut.options, **options) as llm:
            config = llm.config
            assert (config.tensor_parallel, config.pipeline_parallel) == (cut.ranks, cut.stages)
            assert REQUESTS.together(llm) == expected
            before = llm.stats().prefix_hits
            assert REQUESTS.together(llm) == expected
            assert llm.stats().prefix_hits > before
            llm.check_integrity()


@pytest.mark.parametrize(
    ("layers", "heads", "cut"),
    [
        (2, (8, 8), ranks(2)),
        (2, (8, 8), ranks(3)),
        (2, (9, 3), ranks(4)),
        slow(2, (8, 8), ranks(4)),
        slow(2, (8, 8), ranks(8)),
        slow(2, (9, 3), ranks(2)),
        slow(2, (9, 3), ranks(3)),
        slow(2, (9, 3), ranks(8)),
        slow(2, (8, 1), ranks(8)),
        (4, (8, 4), stages(2)),
        (5, (8, 4), stages(3)),
        (4, (9, 3), BOTH),
        slow(5, (8, 4), Cut(ranks=3, stages=2)),
        slow(4, (8, 4), stages(4)),
        slow(3, (8, 4), stages(2)),
    ],
    ids=str,
)
def test_on_the_cpu(tmp_path: Path, layers: int, heads: tuple[int, int], cut: Cut) -> None:
    check(dense(tmp_path, layers, heads), cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "heads", "cut"),
    [
        (2, (8, 8), ranks(2)),
        (2, (9, 3), ranks(4)),
        slow(2, (8, 8), ranks(3)),
        slow(2, (8, 8), ranks(8)),
        slow(2, (9, 3), ranks(8)),
        (5, (8, 4), stages(2)),
        (4, (8, 4), stages(3)),
        slow(3, (9, 3), BOTH),
    ],
    ids=str,
)
def test_on_the_reference_backend(
    tmp_path: Path, layers: int, heads: tuple[int, int], cut: Cut
) -> None:
    check(dense(tmp_path, layers, heads), cut, backend="reference")


@cuts(ranks(2), slow(ranks(3)), slow(stages(2)))
def test_threads(tmp_path: Path, cut: Cut) -> None:
    check(dense(tmp_path), cut, threads=2 * cut.ranks * cut.stages)


@pytest.mark.slow
@cuts(ranks(2), slow(ranks(3)), stages(2), slow(stages(3)), slow(BOTH))
def test_preemption(tmp_path: Path, cut: Cut) -> None:
    model, requests = dense(tmp_path, 4), growing(6, max_tokens=100)
    with model.start() as one:
        expected = requests.alone(one)
    planned = model.planned(max_model_len=160, **cut.options).config
    block = planned.kv_cache_bytes // planned.num_blocks
    options: dict[str, Any] = {"kv_cache_bytes": 12 * block, "max_model_len": 160}
    with model.start(**cut.options, **options) as several:
        assert requests.together(several) == expected
        assert several.stats().preemptions > 0
        several.check_integrity()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "cut"),
    [
        ("cpu", ranks(3)),
        ("reference", ranks(3)),
        ("cpu", stages(3)),
        slow("reference", stages(3)),
        slow("cpu", BOTH),
    ],
    ids=str,
)
def test_forks_reports_of_prompts_and_embeddings(tmp_path: Path, backend: str, cut: Cut) -> None:
    model, tokens = dense(tmp_path, 4), [prompt(seed, 45, 256) for seed in (1, 2)]
    forked = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True, logprobs=2)
    reported = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2)
    found = []
    for each in (Cut(), cut):
        with model.start(backend=backend, **each.options) as llm:
            (output,) = llm.generate([{"prompt_token_ids": tokens[0]}], reported)
            mean = PoolingParams(pooling="mean")
            embedded = llm.embed([{"prompt_token_ids": t} for t in tokens], mean)
            vectors = [each.embedding.tolist() for each in embedded]
            found.append((run(llm, tokens, forked), output.prompt_logprobs, vectors))
    assert found[0] == found[1]


@pytest.mark.slow
@needs_native
def test_grammars_of_stages() -> None:
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
    for cut in (Cut(), stages(3)):
        with LLM(backend="cpu", threads=1, **cut.options) as llm:
            found.append(run(llm, prompts, [*constrained, free, free]))
            llm.check_integrity()
    assert found[0] == found[1]


def stored(folder: Path, **options: Any) -> Served:
    """A model with weights of its own."""
    return Served(folder, {"load_format": "auto", "artifact": False, **options})


@pytest.mark.parametrize(
    ("quantization", "kv_cache", "cut"),
    [
        ("int8", "auto", ranks(2)),
        ("int4", "int4", ranks(2)),
        slow("int4", "int8", ranks(3)),
        slow("int8", "int4", ranks(4)),
        slow("int4", "k8v4", ranks(2)),
        ("int4", "int4", stages(2)),
        slow("int4", "int4", BOTH),
        slow("int8", "auto", stages(2)),
        slow("int4", "int8", stages(2)),
        slow("int4", "k8v4", stages(2)),
    ],
    ids=str,
)
def test_quantized_by_what_a_text_says(quantization: str, kv_cache: str, cut: Cut) -> None:
    """Columns and keys are scaled, by factors that are of all columns and all heads, and of the
    layers that a stage has."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
    folder = tiny_checkpoint(
        "qwen3", dtype="bfloat16", vocab_size=512, num_hidden_layers=3, **sizes
    )
    model = stored(folder, quantization=quantization, kv_cache_dtype=kv_cache)
    assert model.planned().config.quantization_calibration
    check(model, cut)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "several"),
    [
        ("qwen3_moe", [ranks(2), stages(2), BOTH]),
        ("deepseek_v3", [ranks(3), stages(2)]),
        slow("deepseek_v3", [BOTH]),
        slow("granitemoehybrid", [BOTH]),
        slow("lfm2", [BOTH]),
        ("qwen3_next", [stages(2)]),
        slow("qwen3_next", [ranks(2), BOTH]),
        slow("mixtral", [ranks(2), ranks(4), stages(2)]),
        slow("gpt_oss", [ranks(2), stages(2)]),
        slow("gemma3", [ranks(2), stages(2)]),
        slow("olmo2", [ranks(2), ranks(3), stages(2)]),
        slow("granitemoehybrid", [ranks(2), stages(2)]),
        slow("lfm2", [ranks(2), ranks(4), stages(2)]),
    ],
)
def test_families(family: str, several: list[Cut]) -> None:
    check(stored(tiny_checkpoint(family)), *several)


@pytest.mark.slow
def test_a_quantized_checkpoint(tmp_path: Path) -> None:
    folder, _ = gptq_checkpoint(tmp_path, sym=False, shuffled=True, desc_act=True)
    check(stored(folder), ranks(2), stages(2))


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_experts_that_are_rounded(quantization: str) -> None:
    check(stored(tiny_checkpoint("qwen3_moe"), quantization=quantization), ranks(2), stages(2))
