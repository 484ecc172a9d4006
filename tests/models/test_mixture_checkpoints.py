"""Checkpoints of families with experts: in both layouts, and with tensors that are wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from support.checkpoints import load_oracle, tiny_checkpoint
from support.families import FAMILIES

from penstock.errors import PenstockError, WeightError
from penstock.plan.lower import lower
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.model_folder import load_model_spec

MIXTURES = (
    "dots1",
    "ernie4_5_moe",
    "glm4_moe",
    "gpt_oss",
    "granitemoe",
    "llama4_text",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
)


def weights_of(folder: Path) -> CheckpointWeights:
    spec = load_model_spec(folder)
    return CheckpointWeights(folder, spec, lower(spec).weights, "float32")


@pytest.mark.parametrize("family", MIXTURES)
def test_both_ways_in_which_transformers_saves_experts_are_read(
    family: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family)
    load_oracle(folder).save_pretrained(tmp_path, save_original_format=False)
    published, native = weights_of(folder), weights_of(tmp_path)
    assert set(published.names()) == set(native.names())
    for name in published.names():
        np.testing.assert_array_equal(published.get(name), native.get(name), err_msg=name)


def changed(folder: Path, to: Path, change: Any) -> Path:
    """A copy of a checkpoint whose tensors were changed."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.thinned(5)
@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("wrong", ["missing", "shape"])
def test_a_wrong_tensor_of_a_mixture_is_one_error_before_weights_are_read(
    family: str, wrong: str, tmp_path: Path
) -> None:
    """One tensor of a layer's mixture is left out, or has a row less."""
    folder = tiny_checkpoint(family)
    last = FAMILIES[family].fields.get("num_hidden_layers", 2) - 1
    mixture = re.compile(
        rf"model\.layers\.{last}\.(mlp|block_sparse_moe|feed_forward)\.(?!.*experts\.[1-9])"
    )
    names = [name for name in load_file(folder / "model.safetensors") if mixture.match(name)]
    assert len(names) >= 3
    for i, name in enumerate(names):

        def change(tensors: dict[str, Any], name: str = name) -> None:
            tensor = tensors.pop(name)
            if wrong == "shape":
                tensors[name] = np.ascontiguousarray(tensor[..., :-1])

        with pytest.raises(WeightError, match=re.escape(repr(name))) as caught:
            weights_of(changed(folder, tmp_path / str(i), change))
        message = str(caught.value)
        assert message.startswith((f"{tmp_path}", "tensor"))
        assert "one checkpoint" in message or "MXFP4" in message


def test_stacks_of_transposed_experts_are_read(tmp_path: Path) -> None:
    """As the language models of Qwen3-VL have them."""
    folder = tiny_checkpoint("qwen3_moe")

    def change(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            at = f"model.layers.{layer}.mlp.experts."

            def stack(*names: str, at: str = at) -> NDArray[np.float32]:
                each = [
                    np.concatenate([tensors.pop(f"{at}{i}.{name}.weight") for name in names])
                    for i in range(6)
                ]
                return np.ascontiguousarray(np.stack(each).swapaxes(1, 2))

            tensors[f"{at}gate_up_proj"] = stack("gate_proj", "up_proj")
            tensors[f"{at}down_proj"] = stack("down_proj")

    published, transposed = weights_of(folder), weights_of(changed(folder, tmp_path, change))
    for name in published.names():
        np.testing.assert_array_equal(published.get(name), transposed.get(name), err_msg=name)


def test_biases_of_choices_stay_in_float32(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        name = "model.layers.1.mlp.gate.e_score_correction_bias"
        tensors[name] = np.array([1, 2, 3, 4, 5, 6], np.float32) / 7

    folder = changed(tiny_checkpoint("glm4_moe"), tmp_path, change)
    spec = load_model_spec(folder)
    weights = CheckpointWeights(folder, spec, lower(spec, "bfloat16").weights, "bfloat16")
    bias = np.asarray(weights.get("layers.1.router.choice_bias"))
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, np.array([1, 2, 3, 4, 5, 6], np.float32) / 7)
    assert np.asarray(weights.get("layers.1.router")).dtype != np.float32


def test_experts_beyond_the_configuration_are_refused(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        name = "model.layers.1.block_sparse_moe.experts.{}.w1.weight"
        tensors[name.format(5)] = tensors[name.format(0)]

    with pytest.raises(WeightError, match=r"1 tensor\(s\) have no place.*experts\.5\.w1"):
        weights_of(changed(tiny_checkpoint("mixtral"), tmp_path, change))


def test_tensors_of_both_ways_at_once_are_refused(tmp_path: Path) -> None:
    """Experts one by one are taken, and what stands beside them has no place."""

    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.mlp.experts.down_proj"] = np.zeros((5, 64, 28), np.float32)

    with pytest.raises(PenstockError, match="no place"):
        weights_of(changed(tiny_checkpoint("mixtral"), tmp_path, change))


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["model.layers.2.eh_proj.weight"] = np.zeros((64, 128), np.float32)

    weights_of(changed(tiny_checkpoint("glm4_moe"), tmp_path, change))
