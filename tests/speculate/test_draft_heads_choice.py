"""``medusa:model=FOLDER`` and ``eagle:model=FOLDER`` become executors, or are refused with a
reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import VOCAB, tiny_checkpoint
from support.head_checkpoints import (
    DRAFT_VOCAB,
    EAGLE1,
    EAGLE3,
    HIDDEN,
    MEDUSA,
    TARGET_LAYERS,
    eagle1_arrays,
    eagle3_arrays,
    medusa_arrays,
    target_folder,
    write_heads,
)
from support.needs import needs_native
from support.tiny_plans import Chunk, step_of

from penstock.artifact.key import artifact_key
from penstock.cache.geometry import layer_block_bytes
from penstock.engine.loader import EnginePlan, draft_tokens, load, plan_engine
from penstock.engine_options import engine_config
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.interface.weights import Packing
from penstock.models.draft_heads import EagleSpec, MedusaSpec
from penstock.plan.plan import Plan
from penstock.quant.scheme import GridScheme


def drawn(method: str, heads: Path, target: Path | None = None, **options: Any) -> EnginePlan:
    fields = {"backend": "reference", "max_model_len": 64, "kv_cache_bytes": 1 << 20, **options}
    fields["speculative"] = f"{method}:model={heads}" if ":" not in method else method
    return plan_engine(engine_config(str(target or target_folder()), fields))


@pytest.fixture
def medusa(tmp_path: Path) -> Path:
    return write_heads(tmp_path / "medusa", MEDUSA, medusa_arrays(), "medusa_lm_head.pt")


@pytest.fixture
def eagle1(tmp_path: Path) -> Path:
    arrays = eagle1_arrays(embed=False)
    return write_heads(tmp_path / "eagle1", EAGLE1, arrays, "pytorch_model.bin", "model.")


@pytest.fixture
def eagle3(tmp_path: Path) -> Path:
    return write_heads(tmp_path / "eagle3", EAGLE3, eagle3_arrays(), dtype=np.float16)


def row(executor: Any, plan: Plan) -> Any:
    step = step_of([Chunk(np.array([7], np.int32), 0, 1, [0])])
    given = np.random.default_rng(0).standard_normal((1, plan.feature_size), np.float32)
    return executor.run(replace(step, features=given, groups=step.groups[: len(plan.kv_groups)]))


def test_medusa(medusa: Path) -> None:
    engine_plan = drawn("medusa", medusa)
    draft = engine_plan.draft
    assert draft is not None
    assert isinstance(draft.spec, MedusaSpec)
    assert (draft.spec.kind, draft.spec.num_heads, draft.spec.feature_size) == ("medusa", 3, HIDDEN)
    assert draft.config.kv_cache_bytes == 0
    plain = plan_engine(
        engine_config(
            str(target_folder()),
            {"backend": "reference", "max_model_len": 64, "kv_cache_bytes": 1 << 20},
        )
    )
    assert engine_plan.config.num_blocks == plain.config.num_blocks
    assert engine_plan.plan == plain.plan
    assert draft_tokens(draft) is None
    result = row(load(draft), draft.plan)
    assert [x.shape for x in (result.logits, *result.more_logits)] == [(1, VOCAB)] * 3


def test_eagle1(eagle1: Path) -> None:
    engine_plan = drawn("eagle", eagle1)
    draft = engine_plan.draft
    assert draft is not None
    assert isinstance(draft.spec, EagleSpec)
    assert (draft.spec.kind, draft.spec.feature_size) == ("eagle1", HIDDEN)
    assert draft.config.num_blocks == engine_plan.config.num_blocks
    own = layer_block_bytes("float32", 2, 16)
    assert draft.config.kv_cache_bytes == draft.config.num_blocks * own
    assert engine_plan.config.kv_cache_bytes == draft.config.num_blocks * own * (TARGET_LAYERS + 1)
    assert engine_plan.plan.taps is None
    assert draft_tokens(draft) is None
    result = row(load(draft), draft.plan)
    assert result.logits.shape == (1, VOCAB)
    assert result.hidden.shape == (1, HIDDEN)


def test_eagle3(eagle3: Path) -> None:
    engine_plan = drawn("eagle", eagle3)
    draft = engine_plan.draft
    assert draft is not None
    assert isinstance(draft.spec, EagleSpec)
    assert (draft.spec.kind, draft.spec.taps) == ("eagle3", (2, 3, 4))
    assert draft.spec.feature_size == 4 * HIDDEN
    # The target's type, whatever the head is kept in.
    assert draft.config.dtype == engine_plan.config.dtype == "float32"
    tokens = draft_tokens(draft)
    assert tokens is not None
    assert tokens.shape == (DRAFT_VOCAB,)
    target = load(engine_plan)
    step = step_of([Chunk(np.arange(5, dtype=np.int32), 0, 5, [0], hidden=range(4))])
    taps = target.run(step).taps
    assert taps is not None
    assert taps.shape == (5, 3 * HIDDEN)
    assert row(load(draft), draft.plan).logits.shape == (1, DRAFT_VOCAB)


@pytest.mark.parametrize("method", ["medusa", "eagle"])
def test_dummy_weights_need_no_files(tmp_path: Path, method: str) -> None:
    config = MEDUSA if method == "medusa" else EAGLE3
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = drawn(method, tmp_path, load_format="dummy").draft
    assert draft is not None
    assert np.isfinite(row(load(draft), draft.plan).logits).all()
    with pytest.raises(WeightError, match="has no weights of heads"):
        drawn(method, tmp_path)


def test_quantization_is_asked_for_or_the_targets_or_int8(eagle1: Path) -> None:
    def scheme(options: str = "", **target: Any) -> object:
        draft = drawn(f"eagle:model={eagle1}{options}", eagle1, **target).draft
        assert draft is not None
        return draft.config.schemes.linear

    assert scheme() == GridScheme(8)
    assert scheme(quantization="int4") == GridScheme(4)
    assert scheme(",quantization=none") is None
    assert scheme(",quantization=none", quantization="int8") is None
    assert scheme(",quantization=int4") == GridScheme(4)
    draft = drawn(f"eagle:model={eagle1},quantization=int8", eagle1).draft
    assert draft is not None
    assert np.isfinite(row(load(draft), draft.plan).logits).all()


def test_fewer_positions_are_stretched_with_a_note(eagle1: Path, tmp_path: Path) -> None:
    engine_plan = drawn("eagle", eagle1, max_model_len=200)
    assert engine_plan.draft is not None
    assert engine_plan.draft.plan.max_positions == 200
    assert any("trained for 128 positions" in note for note in engine_plan.config.notes)
    assert not drawn("eagle", eagle1, max_model_len=128).config.notes
    scaled = EAGLE1 | {"rope_scaling": {"type": "dynamic", "factor": 1.5}}
    folder = write_heads(tmp_path / "dynamic", scaled, eagle1_arrays())
    with pytest.raises(ConfigError, match="set max_model_len to at most 192"):
        drawn("eagle", folder, max_model_len=200)


def test_artifacts_know_the_target(eagle1: Path, eagle3: Path, medusa: Path) -> None:
    """Whose weights a head shares are part of what its packed weights are of."""

    def key(method: str, heads: Path, target: Path) -> Any:
        draft = drawn(method, heads, target).draft
        assert draft is not None
        return artifact_key(draft.config, draft.plan, Packing("amx", 1))

    first, second = target_folder(), target_folder(seed=1)
    for method, heads, shared in (
        ("eagle", eagle1, 1),
        ("eagle", eagle3, 1),
        ("medusa", medusa, 0),
    ):
        assert (key(method, heads, first) == key(method, heads, second)) == (not shared)
        assert len(key(method, heads, first).weights) == 1 + shared


@needs_native
@pytest.mark.parametrize("kind", ["medusa", "eagle1", "eagle3"])
def test_packed_heads_are_restored(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    folder = request.getfixturevalue(kind)
    method = "medusa" if kind == "medusa" else "eagle"
    options = {"backend": "cpu", "threads": 1, "artifact_dir": str(tmp_path / "kept")}
    draft = drawn(method, folder, **options).draft
    assert draft is not None
    results, marks = [], []
    for _ in range(2):
        executor = load(draft, marks.append, keeping="always")
        result = row(executor, draft.plan)
        results.append([x.copy() for x in (result.logits, result.hidden, *result.more_logits)])
        executor.close()
    assert marks.count("pack weights") == marks.count("restore weights") == 1
    for packed, restored in zip(*results, strict=True):
        np.testing.assert_array_equal(packed, restored)


def wrong(config: dict[str, Any], make: Callable[..., Any], **changes: Any) -> Any:
    return config | changes, make


@pytest.mark.parametrize(
    ("method", "config", "make", "problem"),
    [
        ("eagle", *wrong(EAGLE1, eagle1_arrays, vocab_size=300), "vocabulary of 300 tokens"),
        ("medusa", *wrong(MEDUSA, medusa_arrays, hidden_size=32), "hidden states of size 32"),
        ("medusa", *wrong(MEDUSA, medusa_arrays, vocab_size=32), "vocabulary of 32 tokens"),
        ("eagle", *wrong(EAGLE3, eagle3_arrays, target_hidden_size=32), "of size 32"),
        ("eagle", *wrong(MEDUSA, medusa_arrays), "holds Medusa heads, not an EAGLE head"),
        ("medusa", *wrong(EAGLE1, eagle1_arrays), "holds an EAGLE head, not Medusa heads"),
        ("draft", *wrong(EAGLE1, eagle1_arrays), "holds an EAGLE head, not a model"),
        ("draft", *wrong(EAGLE3, eagle3_arrays), "draft with eagle:model="),
        ("draft", *wrong(MEDUSA, medusa_arrays), "draft with medusa:model="),
    ],
)
def test_what_cannot_draft_is_refused(
    tmp_path: Path, method: str, config: dict[str, Any], make: Callable[..., Any], problem: str
) -> None:
    folder = write_heads(tmp_path, config, make())
    with pytest.raises(ConfigError, match=problem):
        drawn(method, folder)


@pytest.mark.parametrize("method", ["eagle", "medusa"])
@pytest.mark.parametrize("layers", [1, 2])
def test_ordinary_models_are_no_heads(method: str, layers: int) -> None:
    folder = tiny_checkpoint("llama", num_hidden_layers=layers)
    with pytest.raises(ConfigError, match="holds an ordinary model"):
        drawn(method, folder)


def test_taps_must_be_layers_of_the_target(eagle3: Path) -> None:
    shallow = tiny_checkpoint("llama", num_hidden_layers=2)
    with pytest.raises(ModelError, match="layers 0 to 1"):
        drawn("eagle", eagle3, shallow)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = write_heads(tmp_path, EAGLE1 | {"intermediate_size": 60}, eagle1_arrays())
    draft = drawn("eagle", folder).draft
    assert draft is not None
    with pytest.raises(WeightError, match=r"gate_proj.weight' has shape \[100, 64\]"):
        load(draft)


def test_heads_must_be_named_but_for_the_demo_model() -> None:
    for method in ("medusa:num_tokens=4", "eagle:num_tokens=4"):
        with pytest.raises(ConfigError, match="needs the option 'model', heads that were trained"):
            drawn(method, Path())
