"""With quantized weights too, a request gives the same bits whatever else runs.

Rows alone and in crowds take different instructions, so this is not the case of
``test_bitwise.py`` over again.
"""

from __future__ import annotations

import pytest
from support.bitwise import Bits, Requests, Served, prompt, run, served

from penstock import LLM, SamplingParams

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 500,
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
"""Widths that fill neither tiles nor groups."""


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
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    bounds = {"max_num_batched_tokens": 256, "max_model_len": 1024}
    return served(tmp_path_factory.mktemp("quantized"), CONFIG, **bounds, **request.param)


PROMPTS = [prompt(seed, length, 500) for seed, length in enumerate((1, 9, 17, 33, 100, 300))]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=4)
REQUESTS = Requests.product(PROMPTS, PARAMS)


def test_together(plain: LLM, expected: list[Bits]) -> None:
    crowd = [prompt(100 + i, 1 + 7 * i, 500) for i in range(20)]
    assert run(plain, PROMPTS + crowd, PARAMS)[: len(PROMPTS)] == expected


@pytest.mark.thinned(3)
def test_chunks_prefix_hits_and_threads(model: Served, expected: list[Bits]) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=8, threads=3) as llm:
        assert REQUESTS.together(llm) == expected
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits > 0


def test_quantization_changes_the_result(model: Served, plain: LLM) -> None:
    """Or the tests above would show nothing of it."""
    plain_options = dict.fromkeys(("quantization_group", "quantize_activations", "quantize_head"))
    with model.start(quantization="none", quantization_zero_points=False, **plain_options) as llm:
        (exact,), (rounded,) = (run(some, [PROMPTS[5]], PARAMS)[0] for some in (llm, plain))
        assert exact[1] != rounded[1]
