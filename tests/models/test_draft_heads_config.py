"""Configurations of published heads: what is read of them, and all that is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.head_checkpoints import (
    EAGLE1,
    EAGLE3,
    HIDDEN,
    MEDUSA,
    eagle1_arrays,
    eagle3_arrays,
    medusa_arrays,
    write_heads,
)
from support.tiny_plans import make_spec

from penstock import demo_model_path
from penstock.errors import ModelError
from penstock.models.draft_heads import DraftHeadsSpec, EagleSpec, MedusaSpec
from penstock.models.draft_heads_config import DraftHeadsKind
from penstock.models.spec import LayerSpec, ModelSpec
from penstock.plan.lower import lower
from penstock.weights.model_folder import draft_heads_in, load_draft_heads_spec


def target(layers: int = 32) -> ModelSpec:
    spec = make_spec(tie=False)
    layer: LayerSpec = spec.layers[0]
    return replace(
        spec, hidden_size=HIDDEN, vocab_size=301, layers=(layer,) * layers, dtype="bfloat16"
    )


def read(
    folder: Path, kind: DraftHeadsKind, config: dict[str, Any], layers: int = 32
) -> DraftHeadsSpec:
    """The spec that a configuration alone gives."""
    (folder / "config.json").write_text(json.dumps(config))
    return load_draft_heads_spec(folder, kind, target(layers), dummy=True)


def eagle(folder: Path, config: dict[str, Any], layers: int = 32) -> EagleSpec:
    spec = read(folder, "eagle", config, layers)
    assert isinstance(spec, EagleSpec)
    return spec


def test_medusa(tmp_path: Path) -> None:
    spec = read(tmp_path, "medusa", MEDUSA)
    assert isinstance(spec, MedusaSpec)
    assert (spec.num_heads, spec.num_blocks) == (3, 1)
    assert (spec.hidden_size, spec.vocab_size, spec.dtype) == (HIDDEN, 301, "bfloat16")
    assert lower(spec).num_parameters == 3 * (HIDDEN * HIDDEN + HIDDEN + 301 * HIDDEN)
    more = MEDUSA | {"hidden_size": 80, "vocab_size": 99, "torch_dtype": "float16"}
    reported = read(tmp_path, "medusa", more)
    assert (reported.hidden_size, reported.vocab_size) == (80, 99)


def test_sizes_of_medusa_follow_from_its_weights(tmp_path: Path) -> None:
    arrays = medusa_arrays()
    for head in range(3):
        arrays[f"{head}.1.weight"] = arrays[f"{head}.1.weight"][:200, :50].copy()
    spec = load_draft_heads_spec(write_heads(tmp_path, MEDUSA, arrays), "medusa", target())
    assert (spec.vocab_size, spec.hidden_size) == (200, 50)


def test_eagle1(tmp_path: Path) -> None:
    spec = eagle(tmp_path, EAGLE1)
    assert (spec.kind, spec.fc_bias, spec.taps, spec.num_outputs) == ("eagle1", True, (), 301)
    assert (spec.feature_size, spec.dtype, spec.max_positions) == (HIDDEN, "bfloat16", 128)
    assert not eagle(tmp_path, EAGLE1 | {"bias": False}).fc_bias
    qwen = EAGLE1 | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "qkv_bias": True}
    attention = eagle(tmp_path, qwen).layers[0].attention
    assert (attention.qkv_bias, attention.output_bias) == (True, False)


@pytest.mark.parametrize("bias", [True, False])
def test_the_bias_of_eagle1_follows_from_its_weights(tmp_path: Path, bias: bool) -> None:
    config = {name: value for name, value in EAGLE1.items() if name != "bias"}
    folder = write_heads(tmp_path, config, eagle1_arrays(bias=bias))
    spec = load_draft_heads_spec(folder, "eagle", target())
    assert isinstance(spec, EagleSpec)
    assert spec.fc_bias == bias


def test_eagle3(tmp_path: Path) -> None:
    spec = eagle(tmp_path, EAGLE3)
    assert (spec.kind, spec.taps, spec.num_outputs) == ("eagle3", (2, 16, 29), 120)
    assert (spec.feature_size, spec.target_hidden_size) == (4 * HIDDEN, HIDDEN)
    wide = eagle(tmp_path, EAGLE3 | {"target_hidden_size": 100})
    assert (wide.feature_size, lower(wide).weights["fc"].shape) == (300 + HIDDEN, (HIDDEN, 300))


def test_eagle3_is_known_by_its_weights(tmp_path: Path) -> None:
    config = EAGLE1 | {"bias": False}
    arrays = eagle3_arrays()
    arrays["lm_head.weight"] = medusa_arrays()["0.1.weight"]
    folder = write_heads(tmp_path, config, arrays)
    spec = load_draft_heads_spec(folder, "eagle", target())
    assert isinstance(spec, EagleSpec)
    assert (spec.kind, spec.num_outputs) == ("eagle3", 301)


def test_taps_are_inputs_at_the_top_and_outputs_within(tmp_path: Path) -> None:
    ids = "eagle_aux_hidden_state_layer_ids"
    assert eagle(tmp_path, EAGLE3, layers=6).taps == (2, 3, 3)
    assert eagle(tmp_path, EAGLE3 | {ids: [0, 5]}).taps == (0, 5)
    within = EAGLE3 | {"eagle_config": {ids: [1, 15, 28], "use_aux_hidden_state": True}}
    assert eagle(tmp_path, within).taps == (2, 16, 29)
    assert eagle(tmp_path, within | {ids: [2, 16, 29]}).taps == (2, 16, 29)
    with pytest.raises(ModelError, match="contradicts the list in eagle_config"):
        eagle(tmp_path, within | {ids: [1, 15, 28]})
    assert eagle(tmp_path, EAGLE3 | {"eagle_config": {ids: []}}).taps == (2, 16, 29)
    with pytest.raises(ModelError, match="layer 32, and the model has layers 0 to 31"):
        eagle(tmp_path, EAGLE3 | {"eagle_config": {ids: [1, 15, 31]}})


@pytest.mark.parametrize(
    ("kind", "config", "problem"),
    [
        ("medusa", MEDUSA | {"medusa_layer": 1}, r"medusa_layer \(1\) is not a field"),
        ("medusa", MEDUSA | {"medusa_num_heads": 0}, "medusa_num_heads"),
        ("medusa", MEDUSA | {"medusa_num_heads": 65}, "must be from 1 to 64"),
        ("medusa", MEDUSA | {"medusa_num_layers": 1.0}, "must be an integer"),
        ("medusa", MEDUSA | {"torch_dtype": "int8"}, "torch_dtype"),
        ("eagle", EAGLE1 | {"num_hidden_layers": 2}, "num_hidden_layers .2. must be 1"),
        ("eagle", EAGLE1 | {"residual_scale": 2}, "residual_scale"),
        ("eagle", EAGLE1 | {"architectures": ["GPT2LMHeadModel"]}, "not supported for EAGLE"),
        ("eagle", EAGLE1 | {"model_type": "gpt2"}, "model_type"),
        ("eagle", EAGLE1 | {"hidden_act": "tanh"}, "hidden_act"),
        ("eagle", EAGLE1 | {"sliding_window": 512}, "sliding_window"),
        ("eagle", EAGLE1 | {"target_hidden_size": 32}, "target_hidden_size"),
        ("eagle", EAGLE1 | {"pretraining_tp": 2}, "pretraining_tp"),
        ("eagle", EAGLE1 | {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("eagle", EAGLE3 | {"bias": True}, "EAGLE 3 has none"),
        ("eagle", EAGLE3 | {"draft_vocab_size": 302}, "draft_vocab_size"),
        ("eagle", EAGLE3 | {"fc_norm": True}, "fc_norm .True. must be False"),
        ("eagle", EAGLE3 | {"eagle_config": {"use_mtp_layernorm": True}}, "use_mtp_layernorm"),
        ("eagle", EAGLE3 | {"eagle_config": {"what": 1}}, "eagle_config.what .1. is not a field"),
    ],
)
def test_what_is_not_known_is_refused(
    tmp_path: Path, kind: DraftHeadsKind, config: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        read(tmp_path, kind, config)


def test_kinds_are_distinguished(tmp_path: Path) -> None:
    assert draft_heads_in(write_heads(tmp_path / "a", MEDUSA, medusa_arrays())) == "medusa"
    assert draft_heads_in(write_heads(tmp_path / "b", EAGLE3, eagle3_arrays())) == "eagle"
    folder = write_heads(tmp_path / "c", EAGLE1, eagle1_arrays(), prefix="model.")
    assert draft_heads_in(folder) == "eagle"
    assert draft_heads_in(folder, dummy=True) is None
    assert draft_heads_in(demo_model_path()) is None
    assert draft_heads_in(tmp_path / "nothing") is None
