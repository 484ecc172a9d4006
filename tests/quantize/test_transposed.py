"""Matrices that a checkpoint in floats has as ``[inputs, outputs]``: GPT-2's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.quantized_checkpoints import logits
from support.quantized_runs import SAMPLES

from penstock.backends.registry import backend
from penstock.models.squeezellm import RowCodebooks
from penstock.plan.lower import lower
from penstock.quantize.fisher import SquaredGradients
from penstock.quantize.forms import w8a8
from penstock.quantize.forms.bitsandbytes import Bnb4
from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.forms.small_floats import Fp8, Mxfp4
from penstock.quantize.forms.sparse import SparseFloats
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Awq, Gptq, Method, Quip, RoundToNearest, SmoothQuant
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.source import SourceModel
from penstock.quantize.squeezing import SqueezeLlm
from penstock.weights.cast import dequantized
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec


def integers(form: str = "compressed-tensors", bits: int = 4) -> Integers:
    return Integers(
        IntegerGrid(bits, 32, True, STORAGES[form].scale_dtype("float32")), STORAGES[form]
    )


BYTES = Integers(IntegerGrid(8, None, True, "float32"), w8a8)
NEAREST = {
    "integers": RoundToNearest(integers()),
    "gptq": RoundToNearest(integers("gptq")),
    "awq": RoundToNearest(integers("awq")),
    "bytes": RoundToNearest(BYTES),
    "fp8": RoundToNearest(Fp8("channel", "float32")),
    "mxfp4": RoundToNearest(Mxfp4()),
    "nf4": RoundToNearest(Bnb4("nf4", True, "float32")),
    "magnitude": Magnitude(integers()),
    "sparse": Magnitude(SparseFloats("float32", compressed=True)),
    "sparse floats": Magnitude(SparseFloats("float32", compressed=False)),
}
MEASURED: dict[str, Method] = {
    "gptq": Gptq(integers("gptq")),
    "awq": Awq(integers()),
    "smoothquant": SmoothQuant(BYTES),
    "quip": Quip(Lattice(2, 0)),
    "sparsegpt": SparseGpt(integers()),
    "squeezellm": SqueezeLlm(Codebooks(RowCodebooks(4, 0.01), "float32")),
}


def run(folder: Path, method: Method, out: Path) -> Quantized:
    work = Quantization(SourceModel(folder), method, SAMPLES if method.calibrated else None)
    return quantize(work, out, backend("reference").bind, 1)


def values(folder: Path) -> dict[str, Any]:
    spec = load_model_spec(folder)
    weights = open_weights(folder, spec, lower(spec).weights)
    read = {name: weights.get(name) for name in weights.names()}
    return {
        name: value if isinstance(value, np.ndarray) else dequantized(value, "float32", name)
        for name, value in read.items()
    }


@pytest.mark.parametrize("name", NEAREST)
def test_a_reader_finds_the_nearest_points(name: str, tmp_path: Path) -> None:
    folder, method = tiny_checkpoint("gpt2"), NEAREST[name]
    done = run(folder, method, tmp_path / "out")
    before, after = values(folder), values(tmp_path / "out")
    for at in ("layers.0.", "layers.1."):
        joined = np.concatenate([before[at + each] for each in "qkv"])
        found = np.concatenate([after[at + each] for each in "qkv"])
        np.testing.assert_array_equal(found, method.rounded(joined, None, at).dequantize())
        for each in ("o", "up", "down"):
            expected = method.rounded(before[at + each], None, at).dequantize()
            np.testing.assert_array_equal(after[at + each], expected)
    assert done.matrices == 8
    assert done.num_bytes < done.source_bytes or name == "sparse floats"


@pytest.mark.parametrize("name", MEASURED)
def test_methods_that_read_a_text(name: str, tmp_path: Path) -> None:
    folder, method = tiny_checkpoint("gpt2"), MEASURED[name]
    done = run(folder, method, tmp_path / "out")
    assert [each.error is not None for each in done.rounded] == [True] * 8
    exact, rounded = logits(folder), logits(tmp_path / "out")
    assert 0 < np.square(rounded - exact).mean() < 0.8 * np.square(exact).mean()


def test_floats_that_are_sparse_are_stored_as_they_were(tmp_path: Path) -> None:
    folder = tiny_checkpoint("gpt2")
    run(folder, NEAREST["sparse floats"], tmp_path / "out")
    before = load_file(folder / "model.safetensors")
    after = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        after |= load_file(path)
    assert {name: each.shape for name, each in before.items()} == {
        name: each.shape for name, each in after.items()
    }
    kept = after["transformer.h.0.mlp.c_fc.weight"]  # [64, 256]
    assert np.all((kept != 0).reshape(16, 4, -1).sum(axis=1) <= 2)


def test_names_without_what_the_familys_begin_with(tmp_path: Path) -> None:
    """Files of the model without its head have such."""
    folder = shutil.copytree(tiny_checkpoint("gpt2"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    short = {name.removeprefix("transformer."): each for name, each in tensors.items()}
    save_file(short, folder / "model.safetensors")
    run(folder, NEAREST["integers"], tmp_path / "out")
    run(tiny_checkpoint("gpt2"), NEAREST["integers"], tmp_path / "other")
    got, expected = values(tmp_path / "out"), values(tmp_path / "other")
    assert all(np.array_equal(got[name], expected[name]) for name in expected)
    written = {
        name for path in (tmp_path / "out").glob("*.safetensors") for name in load_file(path)
    }
    assert "h.0.attn.c_attn.weight_packed" in written


def test_gradients_are_turned_as_their_matrix_is() -> None:
    folder = tiny_checkpoint("gpt2")
    stored = load_file(folder / "model.safetensors")

    def compute(*_: object) -> dict[str, Any]:
        return dict(stored)

    gradients = SquaredGradients(SourceModel(folder), SAMPLES, compute)
    name = "transformer.h.1.attn.c_proj.weight"
    np.testing.assert_array_equal(gradients.of(name), stored[name].T)


def test_who_does_not_read_the_result_is_said() -> None:
    source = SourceModel(tiny_checkpoint("gpt2"))
    noted = Quantization(source, RoundToNearest(integers())).notes
    assert len(noted) == 1
    assert "transposed" in noted[0]
    assert not Quantization(source, RoundToNearest(integers("gptq"))).notes
    assert not Quantization(source, NEAREST["sparse floats"]).notes
    ordered = Quantization(source, Gptq(integers(), "group"), SAMPLES).notes
    assert any("order of columns" in note for note in ordered)
