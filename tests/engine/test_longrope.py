"""LongRoPE in an engine: which list of frequencies is used, and that memory has no say in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_plans import Chunk, step_of

from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, load, plan_engine
from penstock.models.rope_spec import RopeSpec
from penstock.speculative_config import QuantizedSelf

ORIGINAL, LIMIT = 64, 512
BLOCK_BYTES = 2 * 32 * 2 * 16 * 4  # keys and values of 32 tokens, two heads of 16 in float32
SHORT, LONG = (1.0, 1.1, 1.2, 1.5), (1.0, 2.0, 3.5, 5.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": LIMIT,
        "original_max_position_embeddings": ORIGINAL,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "partial_rotary_factor": 0.5,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def planned(folder: Path, blocks: int, **options: Any) -> EnginePlan:
    """The plan of an engine whose KV cache has so many blocks of 32 tokens."""
    options = {"backend": "reference", "max_num_seqs": 2, "max_num_batched_tokens": 64} | options
    return plan_engine(
        EngineConfig(
            model=str(folder),
            load_format="dummy",
            artifact=False,
            kv_cache_bytes=blocks * BLOCK_BYTES,
            **options,
        )
    )


def rope_of(plan: EnginePlan) -> RopeSpec:
    (rope,) = plan.plan.ropes
    return rope


def logits(plan: EnginePlan) -> NDArray[np.float32]:
    tokens = np.random.default_rng(2).integers(0, 300, 30).astype(np.int32)
    executor = load(plan)
    step = step_of([Chunk(tokens, 0, 30, [0], rows=range(30))])
    result: NDArray[np.float32] = executor.run(step).logits.copy()
    executor.close()
    return result


def test_memory_does_not_decide_what_a_model_computes(folder: Path) -> None:
    """Two blocks hold as many tokens as the model was first trained with, and 16 the whole."""
    plans = [planned(folder, blocks) for blocks in (1, 2, 3, 16)]
    assert [plan.config.max_model_len for plan in plans] == [32, 64, 96, 512]
    first, *others = [logits(plan) for plan in plans]
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert all(rope_of(plan).chosen == "long" for plan in plans)


def test_what_is_asked_for_decides(folder: Path) -> None:
    short = [planned(folder, blocks, max_model_len=ORIGINAL) for blocks in (2, 16)]
    np.testing.assert_array_equal(logits(short[0]), logits(short[1]))
    assert [rope_of(plan).chosen for plan in short] == ["short", "short"]
    long = planned(folder, 16, max_model_len=ORIGINAL + 1)
    assert rope_of(long).chosen == "long"
    assert not np.array_equal(logits(long), logits(short[0]))
    np.testing.assert_array_equal(logits(long), logits(planned(folder, 1)))


def test_a_model_drafts_for_itself_with_its_own_list(folder: Path) -> None:
    for blocks in (3, 48):
        plan = planned(folder, blocks, speculative=QuantizedSelf())
        assert plan.draft is not None
        assert rope_of(plan.draft).chosen == rope_of(plan).chosen == "long"


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (
            {},
            "LongRoPE: the long list of frequencies, as the model's limit, 512 tokens, is beyond "
            "the 64 that it was first trained with; for shorter contexts set max_model_len to 64",
        ),
        (
            {"max_model_len": 65},
            "LongRoPE: the long list of frequencies, as max_model_len, 65 tokens, is beyond "
            "the 64 that it was first trained with; for shorter contexts set max_model_len to 64",
        ),
        (
            {"max_model_len": 40},
            "LongRoPE: the short list of frequencies, as max_model_len, 40 tokens, is within "
            "the 64 that it was first trained with",
        ),
    ],
)
def test_the_choice_is_told(folder: Path, options: dict[str, int], note: str) -> None:
    for blocks in (3, 16):
        assert planned(folder, blocks, **options).config.notes[-1] == note


def test_other_models_have_nothing_to_tell() -> None:
    assert not any("RoPE" in note for note in plan_engine(EngineConfig()).config.notes)


def test_explain_shows_the_choice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--load-format", "dummy", "--backend", "reference", "--kv-cache-bytes", "8192"]
    assert main(["explain", str(folder), *options, "--no-plan"]) == 0
    out = capsys.readouterr().out
    assert "max_model_len" in out
    assert "note     LongRoPE: the long list of frequencies, as the model's limit, 512" in out
