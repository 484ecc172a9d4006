"""Embeddings and output matrices of 8 bits: what is written, read, and computed with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native
from support.quantized_checkpoints import edit_config, load, logits, native_logits
from support.quantized_runs import command

from penstock.backends.cpu import native
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.backends.registry import backend
from penstock.errors import ConfigError, ModelError
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Embed
from penstock.quant import GroupScheme, GroupTensor, Quantization
from penstock.quantize.embeddings import Embeddings
from penstock.quantize.forms import w8a8
from penstock.quantize.forms.bitsandbytes import Bnb4
from penstock.quantize.forms.form import Form
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.forms.small_floats import Fp8, Mxfp4
from penstock.quantize.forms.sparse import SparseFloats
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization as Work
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

F32 = np.ndarray[Any, Any]
SHAPE = {"intermediate_size": 96, "vocab_size": 304}
ROW = GroupScheme(8, None, zero_points=True)
FOURS = Integers(IntegerGrid(4, 32, True, "float32"), STORAGES["compressed-tensors"])
FORMS: dict[str, Form] = {
    "int4": FOURS,
    "w8a8": Integers(IntegerGrid(8, None, True, "float32"), w8a8),
    "fp8": Fp8("channel", "float32"),
    "mxfp4": Mxfp4(),
    "quip": Lattice(2, 0),
    "sparse floats": SparseFloats("float32", compressed=False),
}


def source_of(tied: bool, family: str = "llama") -> Path:
    return tiny_checkpoint(family, tie_word_embeddings=tied, **SHAPE)


def made(folder: Path, form: Form, out: Path) -> Path:
    source = SourceModel(folder)
    work = Work(source, RoundToNearest(form), embeddings=Embeddings(source))
    quantize(work, out, backend("reference").bind, 1)
    return out


def rounded(matrix: F32) -> F32:
    """Independently: the largest magnitude of a row is 127.5 steps."""
    scale = (2 * np.abs(matrix).max(1, keepdims=True) / np.float32(255)).astype(np.float32)
    return np.clip(np.rint(matrix / scale), -128, 127).astype(np.float32) * scale


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_reader_finds_the_nearest_points_of_each_row(
    form: str, tied: bool, tmp_path: Path
) -> None:
    folder = source_of(tied)
    out = made(folder, FORMS[form], tmp_path / "out")
    spec = load_model_spec(out)
    assert isinstance(spec, ModelSpec)
    weights = lower(spec).weights
    found = open_weights(out, spec, weights)
    before = load_file(folder / "model.safetensors")
    names = {"embed": "model.embed_tokens.weight"} | ({} if tied else {"head": "lm_head.weight"})
    for name, stored in names.items():
        value = found.get(name)
        assert isinstance(value, GroupTensor)
        assert value.scheme == ROW
        np.testing.assert_array_equal(value.dequantize(), rounded(before[stored]))
        np.testing.assert_array_equal(value.taken(np.array([7, 3])).codes, value.codes[[7, 3]])
    stored = load(out)
    assert not any(name.endswith(("embed_tokens.weight", "lm_head.weight")) for name in stored)
    # Matrices of layers are what they are without.
    source = SourceModel(folder)
    quantize(
        Work(source, RoundToNearest(FORMS[form])), tmp_path / "plain", backend("reference").bind, 1
    )
    plain = load(tmp_path / "plain")
    layers = [name for name in plain if "layers." in name]
    assert layers == [name for name in stored if "layers." in name]
    for name in layers:
        np.testing.assert_array_equal(stored[name], plain[name], err_msg=name)


def test_a_tied_output_matrix_that_is_stored_again_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(source_of(True), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, folder / "model.safetensors")
    out = made(folder, FOURS, tmp_path / "out")
    assert not any(name.startswith("lm_head") for name in load(out))
    logits(out)


@needs_native
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("activations", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_are_looked_up_in_the_codes(
    tied: bool, activations: bool, isa: str, tmp_path: Path
) -> None:
    """The CPU holds the table once, and computes what the reference does, and what is computed of
    its values in floats."""
    out = made(source_of(tied), FOURS, tmp_path / "out")
    spec = load_model_spec(out)
    plan = fuse(lower(spec, "float32", quantization=Quantization(activations=activations)))
    (embed,) = (op for op in plan.ops if isinstance(op, Embed))
    assert embed.scheme == ROW
    got = native_logits(out, plan, isa, "float32")
    np.testing.assert_allclose(got, logits(out, "reference", activations), rtol=0, atol=2e-4)
    # The first layer's input is exact, so a plan that looks up floats has the same bits.
    floats = replace(plan, ops=tuple(_in_floats(op) for op in plan.ops))
    floats = replace(floats, weights={**plan.weights, "table": _as_floats(plan.weights["embed"])})
    same = native_logits(out, floats, isa, "float32")
    np.testing.assert_array_equal(same.view(np.uint32), got.view(np.uint32))
    table = 304 * plan.spec.hidden_size
    assert weight_bytes(floats) - weight_bytes(plan) == (4 * table if tied else 3 * table - 5 * 304)


def _in_floats(op: Any) -> Any:
    return replace(op, weight="table", scheme=None) if isinstance(op, Embed) else op


def _as_floats(weight: Any) -> Any:
    return replace(weight, floats=True)


def test_random_weights_are_rounded_as_a_checkpoint_would_have_them(tmp_path: Path) -> None:
    from penstock.weights.dummy import DummyWeights

    spec = load_model_spec(made(source_of(True), FOURS, tmp_path / "out"))
    plan = fuse(lower(spec, "float32"))
    (embed,) = (op for op in plan.ops if isinstance(op, Embed))
    assert embed.scheme == ROW
    DummyWeights(plan.weights, 0, "float32").get("embed")


def test_targets_of_other_tools_are_read(tmp_path: Path) -> None:
    out = made(source_of(True), FOURS, tmp_path / "out")
    exact = logits(out)
    path = out / "config.json"
    for targets in (["re:.*embed_tokens$"], ["Embedding"]):
        config = json.loads(path.read_text())
        config["quantization_config"]["config_groups"]["group_1"]["targets"] = targets
        path.write_text(json.dumps(config))
        np.testing.assert_array_equal(logits(out), exact)
    edit_config(out, ignore=["model.embed_tokens"])
    with pytest.raises(Exception, match=r"embed_tokens"):
        logits(out)


def test_an_index_of_an_embeddings_columns_is_refused(tmp_path: Path) -> None:
    out = made(source_of(True), FOURS, tmp_path / "out")
    path = out / "config.json"
    config = json.loads(path.read_text())
    weights = config["quantization_config"]["config_groups"]["group_1"]["weights"]
    weights |= {"strategy": "group", "group_size": 32, "actorder": "group"}
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"embed_tokens with actorder, which is not supported"):
        load_model_spec(out)


def test_other_numbers_of_bits_are_refused_in_quip(tmp_path: Path) -> None:
    out = made(source_of(True), Lattice(2, 0), tmp_path / "out")
    edit_config(out, embedding_bits=4)
    with pytest.raises(ModelError, match=r"embedding_bits.*must be 8"):
        load_model_spec(out)


def test_formats_without_embeddings_are_refused() -> None:
    source = SourceModel(source_of(True))
    sparse = SparseFloats("float32", compressed=True)
    for form in (Bnb4("nf4", True, "float32"), replace(FOURS, storage=STORAGES["gptq"]), sparse):
        with pytest.raises(ConfigError, match="has no room for embeddings"):
            Work(source, RoundToNearest(form), embeddings=Embeddings(source))


def test_a_table_that_is_stored_transposed_or_scaled_is_refused() -> None:
    source = SourceModel(tiny_checkpoint("gpt2"))
    assert Embeddings(source).modules  # its embedding is a matrix like any other


@needs_native
def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (source_of(True), "--embedding-bits", 8)
    code, _, error = command(capsys, *words, "--group-size", 32, "--out", tmp_path / "a")
    assert code == 0, error
    assert load_model_spec(tmp_path / "a").quantized is not None
    record = json.loads((tmp_path / "a" / "penstock_quantization.json").read_text())
    assert record["embedding_bits"] == 8
    for more in (("--method", "nf4"), ("--format", "gptq", "--group-size", 32)):
        code, _, error = command(capsys, *words, *more, "--out", tmp_path / "b")
        assert code != 0
        assert "--embedding-bits" in error
