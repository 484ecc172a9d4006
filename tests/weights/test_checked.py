"""What is odd in the values of weights is told."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.gguf_models import floats, weights_of, write_gguf

from penstock.errors import WeightError
from penstock.models.spec import ModelSpec
from penstock.weights.checked import CheckedWeights
from penstock.weights.model_folder import load_model_spec

UP = "model.layers.1.mlp.up_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def checked(path: Path) -> tuple[CheckedWeights, ModelSpec]:
    spec = load_model_spec(path)
    return CheckedWeights(weights_of(path, spec)), spec


def changed(tmp_path: Path, name: str, value: float, family: str = "llama") -> Path:
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in tiny_checkpoint(family).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    stored = load_file(folder / "model.safetensors")
    stored[name] = np.full_like(stored[name], value)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def blocks(name: str, shape: tuple[int, ...]) -> Type:
    return Type.Q4_1 if len(shape) > 1 and shape[-1] % 32 == 0 else floats(name, shape)


@pytest.mark.parametrize("in_blocks", [False, True])
def test_matrices_of_zeros_are_told(in_blocks: bool, tmp_path: Path) -> None:
    folder = changed(tmp_path, UP, 0.0)
    path = write_gguf(folder, tmp_path / "model.gguf", blocks) if in_blocks else folder
    weights, _ = checked(path)
    for name in weights.names():
        weights.get(name)
    tensor = "blk.1.ffn_up.weight" if in_blocks else UP
    said = weights.warning()
    assert said is not None
    assert said.startswith(f"1 matrix of zeros alone: '{tensor}'; ")
    weights, _ = checked(tiny_checkpoint("llama"))
    for name in weights.names():
        weights.get(name)
    assert weights.warning() is None


def test_a_matrix_that_is_read_in_pieces(tmp_path: Path) -> None:
    weights, spec = checked(changed(tmp_path, EMBEDDING, 0.0))
    weights.rows("embed", 0, 16)
    assert weights.warning() is None  # the first rows of many vocabularies are not used
    weights.rows("embed", 16, spec.vocab_size)
    assert "zeros alone" in (weights.warning() or "")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    norm = "model.layers.1.input_layernorm.weight"
    weights, _ = checked(changed(tmp_path, norm, value))
    with pytest.raises(WeightError, match=f"tensor '{norm}' has values that are not finite"):
        weights.get("layers.1.attn_norm")
    weights.get("layers.0.attn_norm")


def test_an_expert_of_zeros(tmp_path: Path) -> None:
    folder = tiny_checkpoint("mixtral")
    path = write_gguf(folder, tmp_path / "model.gguf")
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_up_exps.weight")
    octets = bytearray(path.read_bytes())
    each = tensor.n_bytes // tensor.shape[-1]
    octets[tensor.data_offset + each : tensor.data_offset + 2 * each] = bytes(each)
    path.write_bytes(octets)
    weights, _ = checked(path)
    for expert in range(int(tensor.shape[-1])):
        weights.member("layers.0.experts.up", expert)
    assert "1 matrix of zeros alone: 'blk.0.ffn_up_exps.weight' (matrix 1)" in str(
        weights.warning()
    )
