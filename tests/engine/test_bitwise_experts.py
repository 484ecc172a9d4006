"""A mixture of experts gives a request the same bits whatever else runs, and after a restart.

Which experts have rows, and how many, depends on the whole step; what they make of a row must not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.artifact_engines import start as start_kept
from support.bitwise import Bits, Requests, Served, prompt, run, served
from support.needs import require_native

from penstock import LLM, SamplingParams
from penstock.speculative_config import QuantizedSelf
from penstock.weights.dummy import DummyWeights

OPTIONS: list[dict[str, Any]] = [
    {"dtype": "bfloat16"},
    {"dtype": "float32"},
    {"quantization": "int8"},
    {"quantization": "int4"},
    {"quantization": "int4", "quantization_group": 32, "dtype": "float32"},
    {"quantization": "int4", "quantize_activations": False},
]


CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 300,
    "hidden_size": 104,
    "intermediate_size": 90,
    "moe_intermediate_size": 45,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
"""Five experts of odd widths, of which a token has three."""
BOUNDS = {"max_num_batched_tokens": 256, "max_model_len": 512}


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda o: " ".join(map(str, o.values())))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return served(tmp_path_factory.mktemp("experts"), CONFIG, **BOUNDS, **request.param)


@pytest.fixture
def usual(tmp_path: Path) -> Served:
    """The model as it is stored."""
    return served(tmp_path, CONFIG, **BOUNDS)


PROMPTS = [prompt(seed, length) for seed, length in enumerate((1, 9, 33, 150))]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=4)
REQUESTS = Requests.product(PROMPTS, PARAMS)


def test_together(plain: LLM, expected: list[Bits]) -> None:
    crowd = [prompt(100 + i, 1 + 7 * i) for i in range(12)]
    assert run(plain, PROMPTS + crowd, PARAMS)[: len(PROMPTS)] == expected


def test_chunks_prefix_hits_and_threads(model: Served, expected: list[Bits]) -> None:
    with model.start(max_num_batched_tokens=16, max_num_seqs=8, threads=4) as llm:
        assert REQUESTS.together(llm) == expected
        assert REQUESTS.together(llm) == expected
        assert llm.stats().prefix_hits > 0


def test_the_second_start_restores_experts(model: Served, tmp_path: Path) -> None:
    require_native()
    options = {**model.options, "max_num_batched_tokens": 64, "max_model_len": 64}
    first = start_kept(model.folder, tmp_path, **options)
    second = start_kept(model.folder, tmp_path, **options)
    assert not first.restored
    assert second.restored
    assert second.logits == first.logits


def test_experts_are_rounded_one_by_one(
    usual: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No stack of floats is ever in memory, and the whole is not read for one expert."""
    asked: list[tuple[int, ...]] = []
    get, member = DummyWeights.get, DummyWeights.member

    def seen(read: Any) -> Any:
        def wrapped(self: DummyWeights, *args: Any) -> Any:
            value = read(self, *args)
            asked.append(value.shape)
            return value

        return wrapped

    monkeypatch.setattr(DummyWeights, "get", seen(get))
    monkeypatch.setattr(DummyWeights, "member", seen(member))
    with usual.start(quantization="int4", artifact_dir=str(tmp_path / "artifacts")):
        pass
    assert {len(shape) for shape in asked} == {1, 2}
    assert asked.count((45, 104)) == 3 * 5 * 2


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_drafting_with_rounded_experts_changes_no_token(usual: Served, quantization: Any) -> None:
    drafting = QuantizedSelf(quantization=quantization)
    with usual.start() as plain, usual.start(speculative=drafting) as llm:
        assert run(llm, PROMPTS[:3], PARAMS) == run(plain, PROMPTS[:3], PARAMS)
