"""What is said where a GPTQ checkpoint's tensors and its configuration do not agree."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from support.gptq_checkpoints import edit_tensors, gptq_checkpoint

from penstock.errors import WeightError
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"


def disagreement(folder: Path) -> str:
    """What opening the weights says."""
    spec = load_model_spec(folder)
    with pytest.raises(WeightError) as caught:
        open_weights(folder, spec, lower(spec).weights)
    return str(caught.value)


def edit_config(folder: Path, lm_head: bool | None, **fields: Any) -> None:
    """Set fields of config.json, and ``lm_head`` of its quantization_config or leave it out."""
    config = json.loads((folder / "config.json").read_text()) | fields
    config["quantization_config"].pop("lm_head")
    if lm_head is not None:
        config["quantization_config"]["lm_head"] = lm_head
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("lm_head", [False, None])
def test_a_quantized_head_that_the_configuration_does_not_tell_of(
    tmp_path: Path, lm_head: bool | None
) -> None:
    packed, _ = gptq_checkpoint(tmp_path, lm_head=True)
    edit_config(packed, lm_head)
    message = disagreement(packed)
    assert "lacks tensor 'lm_head.weight'" in message
    assert "set lm_head to true in the quantization_config" in message
    assert "tie_word_embeddings" not in message


def test_a_quantized_head_beside_a_tied_one(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path, lm_head=True)
    edit_config(packed, True, tie_word_embeddings=True)
    message = disagreement(packed)
    assert "set tie_word_embeddings to false, and lm_head to true in quantiz" in message


@pytest.mark.parametrize("packable", [True, False])
def test_a_dense_head_that_is_said_to_be_quantized(tmp_path: Path, packable: bool) -> None:
    packed, floats = gptq_checkpoint(tmp_path, lm_head=packable)
    if packable:
        replace_matrices(packed, floats, "lm_head")
    edit_config(packed, True)
    message = disagreement(packed)
    assert "lacks tensor 'lm_head.qweight'" in message
    assert "set lm_head to false in the quantization_config" in message
    assert "tie_word_embeddings" not in message


@pytest.mark.parametrize("part", ["qweight", "qzeros", "scales", "g_idx"])
def test_a_quantized_head_that_is_incomplete(tmp_path: Path, part: str) -> None:
    packed, _ = gptq_checkpoint(tmp_path, lm_head=True)
    edit_tensors(packed, **{f"lm_head.{part}": None})
    message = disagreement(packed)
    assert f"lacks tensor 'lm_head.{part}'" in message
    assert "the checkpoint is incomplete" in message
    assert "tie_word_embeddings" not in message


def test_no_head_at_all_may_be_a_shared_one(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path)
    edit_tensors(packed, **{"lm_head.weight": None})
    assert "set tie_word_embeddings to true" in disagreement(packed)


def replace_matrices(folder: Path, floats: Path, *names: str) -> None:
    """Store matrices of the float model in place of quantized ones."""
    path = folder / "model.safetensors"
    kept = {n: x for n, x in load_file(path).items() if n.rpartition(".")[0] not in names}
    plain = load_file(floats / "model.safetensors")
    save_file(kept | {f"{n}.weight": plain[f"{n}.weight"] for n in names}, path)


def test_one_dense_matrix_among_quantized_ones(tmp_path: Path) -> None:
    packed, floats = gptq_checkpoint(tmp_path)
    replace_matrices(packed, floats, Q)
    message = disagreement(packed)
    assert f"lacks tensor '{Q}.qweight'" in message
    assert f"but has '{Q}.weight': the checkpoint is incomplete" in message
    assert "quantization_config" not in message


def test_a_checkpoint_of_floats_that_is_said_to_be_quantized(tmp_path: Path) -> None:
    packed, floats = gptq_checkpoint(tmp_path)
    shutil.copy(floats / "model.safetensors", packed / "model.safetensors")
    assert "remove quantization_config from config.json" in disagreement(packed)


def test_columns_by_activation_are_not_read_without_their_groups(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path, index=False, desc_act=True)
    assert "g_idx'" in (message := disagreement(packed))
    assert "the checkpoint is incomplete" in message
