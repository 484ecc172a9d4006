"""With quantized weights too, a request gives the same bits whatever else runs.

Rows alone and in crowds take different instructions, so this is not the case of
``test_bitwise.py`` over again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import require_native

from penstock import LLM, RequestOutput, SamplingParams

VOCABULARY = 500


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration only, with widths that fill neither tiles nor groups."""
    folder = tmp_path_factory.mktemp("quantized")
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCABULARY,
        "hidden_size": 200,
        "intermediate_size": 344,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


Options = dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[
        {"quantization": "int8"},
        {"quantization": "int8", "quantization_group": 128, "quantize_head": False},
        {"quantization": "int4"},
        {"quantization": "int4", "quantization_group": 32, "dtype": "float32"},
        {"quantization": "int8", "quantization_group": 64, "quantization_zero_points": True},
        {"quantization": "int8", "quantize_activations": False},
        {"quantization": "int4", "quantize_activations": False, "dtype": "float32"},
        {
            "quantization": "int4",
            "quantization_group": 32,
            "quantization_zero_points": True,
            "quantize_activations": False,
        },
    ],
    ids=lambda options: " ".join(str(v) for v in options.values()),
)
def options(request: pytest.FixtureRequest) -> Options:
    chosen: Options = request.param
    return chosen


def start(model: Path, options: Options, **more: Any) -> LLM:
    bounds = {"max_num_batched_tokens": 256, "max_model_len": 1024, "threads": 1}
    require_native()
    return LLM(model=str(model), load_format="dummy", backend="cpu", **(bounds | options | more))


@pytest.fixture(scope="module")
def plain(model: Path, options: Options) -> Iterator[LLM]:
    with start(model, options, enable_prefix_caching=False) as llm:
        yield llm


def prompt(seed: int, length: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(1, VOCABULARY, length)]


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 9, 17, 33, 100, 300))]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=4)


def run(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": p} for p in prompts], PARAMS)


def bits(output: RequestOutput) -> list[tuple[tuple[int, ...], Any]]:
    return [(tuple(c.token_ids), c.logprobs) for c in output.outputs]


@pytest.fixture(scope="module")
def expected(plain: LLM) -> list[Any]:
    return [bits(run(plain, [p])[0]) for p in PROMPTS]


def test_together(plain: LLM, expected: list[Any]) -> None:
    crowd = [prompt(100 + i, 1 + 7 * i) for i in range(20)]
    assert [bits(o) for o in run(plain, PROMPTS + crowd)][: len(PROMPTS)] == expected


@pytest.mark.thinned(3)
def test_chunks_prefix_hits_and_threads(model: Path, options: Options, expected: list[Any]) -> None:
    with start(model, options, max_num_batched_tokens=16, max_num_seqs=8, threads=3) as llm:
        assert [bits(o) for o in run(llm, PROMPTS)] == expected
        assert [bits(o) for o in run(llm, PROMPTS)] == expected
        assert llm.stats().prefix_hits > 0


def test_quantization_changes_the_result(model: Path, plain: LLM, options: Options) -> None:
    """Or the tests above would show nothing of it."""
    plain_options = dict.fromkeys(("quantization_group", "quantize_activations"))
    with start(
        model, options, quantization="none", quantization_zero_points=False, **plain_options
    ) as llm:
        (exact,), (rounded,) = (bits(run(some, [PROMPTS[5]])[0]) for some in (llm, plain))
        assert exact[1] != rounded[1]
