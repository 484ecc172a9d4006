"""Weights in small floats: the nearest values, and what readers find."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.needs import Need

from penstock.backends.registry import backend
from penstock.plan.lower import lower
from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES, e2m1
from penstock.quantize.forms.bitsandbytes import Bnb4, dynamic_map
from penstock.quantize.forms.form import Form
from penstock.quantize.forms.small_floats import Fp8, Mxfp4, Nvfp4, e2m1_codes, e4m3_codes
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Floats = np.ndarray[Any, Any]
FORMS: list[Form] = [
    Fp8("tensor", "bfloat16"),
    Fp8("channel", "bfloat16"),
    Fp8("channel", "float32"),
    Fp8("block", "bfloat16"),
    Mxfp4(),
    Nvfp4(),
    Bnb4("nf4", False, "bfloat16"),
    Bnb4("nf4", True, "bfloat16"),
    Bnb4("fp4", True, "bfloat16"),
]


JOINED = (("q", "k", "v"), ("gate", "up"))
"""Matrices that engines multiply as one."""


def matrix(n: int = 48, k: int = 192) -> Floats:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, k)) * np.exp(rng.normal(size=(n, 1)))).astype(np.float32)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *(("llama", form) for form in FORMS),
        # Where rows of several weights are stored together, scales are of rows alone.
        ("phi3", Fp8("channel", "bfloat16")),
        ("phi3", Mxfp4()),
        ("phi3", Bnb4("fp4", False, "bfloat16")),
    ],
    ids=str,
)
def test_a_reader_finds_what_was_rounded(form: Form, family: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(family, dtype="bfloat16", intermediate_size=96)
    work = Quantization(SourceModel(folder), RoundToNearest(form))
    quantize(work, tmp_path / "out", backend("reference").bind, 1)
    found = {}
    for path in (folder, tmp_path / "out"):
        spec = load_model_spec(path)
        weights = lower(spec, "float32").weights
        source = open_weights(path, spec, weights, "float32")
        found[path] = {name: np.asarray(source.get(name)) for name in weights}
    before, after = found.values()
    rounded = 0
    for name, value in after.items():
        expected = before[name]
        if name.startswith("layers.") and expected.ndim == 2:
            stem, _, last = name.rpartition(".")
            joined = next((each for each in JOINED if last in each), (last,))
            own = form.of_joined([before[f"{stem}.{each}"] for each in joined])
            expected = own.round(expected, name).dequantize()
            rounded += 1
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-9, err_msg=name)
    assert rounded == 2 * 7


@pytest.mark.parametrize("nested", [False, True])
def test_blocks_of_zeros_are_read_again(nested: bool, tmp_path: Path) -> None:
    """Where a block's scale is rounded, that of zeros may not become negative."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama", hidden_size=128, intermediate_size=128), folder)
    tensors = dict(load_file(folder / "model.safetensors"))
    for name, tensor in tensors.items():
        if name.startswith("model.layers.") and tensor.ndim == 2:
            tensor[:3] = 0
            tensor[7] *= 8
    save_file(tensors, folder / "model.safetensors")
    work = Quantization(SourceModel(folder), RoundToNearest(Bnb4("nf4", nested, "float32")))
    quantize(work, tmp_path / "out", backend("reference").bind, 1)
    spec = load_model_spec(tmp_path / "out")
    weights = lower(spec).weights
    source = open_weights(tmp_path / "out", spec, weights, "float32")
    assert all(np.isfinite(np.asarray(source.get(name))).all() for name in weights)


def test_e2m1_is_the_nearest_with_ties_to_even() -> None:
    values = np.linspace(-7, 7, 14 * 64 + 1).astype(
        np.float32
    )  # every half-way point is among them
    expected = np.clip(values, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(e2m1()[e2m1_codes(values)], expected)


def test_e4m3_is_the_nearest_and_never_infinite() -> None:
    values = np.array([0, 1e-9, 0.3, 447, 449, 1e9, -1e9], np.float32)
    read = e4m3_codes(values).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert read.tolist() == [0, 0, 0.3125, 448, 448, 448, -448]


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_each_weight_is_the_nearest_of_the_table(kind: Any) -> None:
    table = np.array(NF4_VALUES if kind == "nf4" else FP4_VALUES, np.float32)
    weights = matrix()
    made = Bnb4(kind, False, "float32").round(weights, "m").dequantize()
    blocks = weights.reshape(-1, 64)
    scales = np.abs(blocks).max(axis=1, keepdims=True)
    distances = np.abs(blocks[:, :, None] - table * scales[..., None])
    assert np.abs(made.reshape(-1, 64) - blocks) == pytest.approx(distances.min(axis=2), abs=1e-6)


def test_double_quantization_changes_scales_by_little() -> None:
    weights = matrix(256, 512)
    plain = Bnb4("nf4", False, "float32").round(weights, "m")
    nested = Bnb4("nf4", True, "float32").round(weights, "m")
    assert np.array_equal(plain.arrays()["weight"], nested.arrays()["weight"])
    assert nested.arrays()["weight.absmax"].dtype == np.uint8
    spread = np.abs(weights).max()
    assert 0 < np.abs(plain.dequantize() - nested.dequantize()).max() < 0.02 * spread
    map_of = dynamic_map()
    assert len(map_of) == len(set(map_of.tolist())) == 256
    assert (np.diff(map_of) > 0).all()
    assert map_of[-1] == 1
    assert 0 in map_of
    # To the bit what bitsandbytes 0.50.2 has.
    digest = hashlib.sha256(map_of.tobytes()).hexdigest()
    assert digest == "e732639a65f497b4ad684bb166a4467708255edd5207757de8b8f0c7e1fda89c"


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_zeros_and_outliers(form: Form) -> None:
    weights = matrix()
    weights[3] = 0
    weights[5, 7] = 1e4
    made = form.round(weights, "m").dequantize()
    assert np.isfinite(made).all()
    assert not made[3].any()
    assert made[5, 7] == pytest.approx(1e4, rel=0.35)
    assert not form.round(np.zeros_like(weights), "m").dequantize().any()


def test_mxfp4_takes_the_power_that_loses_less() -> None:
    weights = matrix()
    made = Mxfp4().round(weights, "m").dequantize()
    groups = weights.reshape(-1, 32)
    fixed = np.floor(np.log2(np.abs(groups).max(axis=1, keepdims=True))) - 2
    usual = e2m1()[e2m1_codes((groups / 2.0**fixed).astype(np.float32))] * 2.0**fixed
    ours = np.square(made.reshape(-1, 32) - groups).sum(axis=1)
    assert (ours <= np.square(usual - groups).sum(axis=1) * (1 + 1e-6)).all()
    assert ours.sum() < 0.97 * np.square(usual - groups).sum()


@pytest.mark.parametrize("form", FORMS[:6], ids=str)
@pytest.mark.parametrize("size", [1e-39, 1e-44])
def test_values_too_small_for_a_scale_become_nearly_zero(form: Form, size: float) -> None:
    """Rows that have decayed to nothing in training keep no checkpoint from being written."""
    weights = matrix()
    weights[3] = size
    for each in (weights, np.full((128, 128), size, np.float32)):
        made = form.round(each, "m")
        assert np.isfinite(made.dequantize()).all()
        assert np.abs(made.dequantize()[3]).max() < 1e-38
        scale = made.arrays()["weight_scale"].astype(np.float32)
        assert (scale > 0).all()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_package_writes_the_same(kind: Any, nested: bool) -> None:
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip(
        "bitsandbytes.functional", reason=Need.PACKAGE.reason("bitsandbytes")
    )
    weights = matrix(128, 256)
    codes, state = functional.quantize_4bit(
        torch.from_numpy(weights), quant_type=kind, compress_statistics=nested
    )
    ours = Bnb4(kind, nested, "float32").round(weights, "m")
    octets = np.stack([ours.arrays()["weight"], codes.numpy()])
    both = np.stack([octets >> 4, octets & 15])
    if kind == "fp4":
        both[both == 8] = 0  # minus 0
    assert (both[:, 0] == both[:, 1]).mean() > 0.999
    theirs = functional.dequantize_4bit(codes, state).numpy()
    assert np.abs(ours.dequantize() - theirs).max() < 0.01 * np.abs(weights).max()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_transformers_reads_the_same_by_the_package(
    kind: Any, nested: bool, tmp_path: Path
) -> None:
    """Values are compared in float32: the package decodes to the type of the quantization's state,
    which is the model's, bfloat16 here, in which logits are a hundredth apart."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip(
        "bitsandbytes.functional", reason=Need.PACKAGE.reason("bitsandbytes")
    )
    pytest.importorskip("accelerate", reason=Need.PACKAGE.reason("accelerate"))
    from transformers import AutoModelForCausalLM

    folder = tiny_checkpoint("llama", dtype="bfloat16", hidden_size=128, intermediate_size=320)
    form = Bnb4(kind, nested, "bfloat16")
    work = Quantization(SourceModel(folder), RoundToNearest(form))
    quantize(work, tmp_path / "out", backend("reference").bind, 1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", device_map="cpu")
    for target in work.layers.targets:
        weight = loaded.get_submodule(target.module).weight
        weight.quant_state.dtype = torch.float32
        theirs = functional.dequantize_4bit(weight.data, weight.quant_state).numpy()
        ours = form.round(work.source.matrix(target.source), target.name).dequantize()
        assert np.abs(ours - theirs).max() < 1e-6 * np.abs(ours).max()


def test_of_rows_that_share_blocks_it_is_said_who_reads_them_otherwise() -> None:
    crossing = SourceModel(tiny_checkpoint("llama", hidden_size=96, intermediate_size=320))
    whole = SourceModel(tiny_checkpoint("llama", hidden_size=128, intermediate_size=320))
    (note,) = Quantization(crossing, RoundToNearest(Bnb4("nf4", True, "float32"))).notes
    assert "bitsandbytes (0.50) computes other values on CPUs" in note
    assert not Quantization(whole, RoundToNearest(Bnb4("nf4", True, "float32"))).notes
    assert not Quantization(crossing, RoundToNearest(Mxfp4())).notes
