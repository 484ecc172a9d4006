"""GPTQ's checkpoints: exactly the values that they stand for, on every backend that runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.gptq_checkpoints import edit_tensors, gptq_checkpoint, pack_along_rows
from support.needs import needs_native
from support.quantized_checkpoints import assert_columns_in_any_order, logits, native_logits

from penstock.backends.cpu import native
from penstock.errors import ModelError, WeightError
from penstock.interface.sources import Packed, RowsOf
from penstock.models.gptq import Gptq
from penstock.models.registry import read_spec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Linear
from penstock.quant import GroupScheme, GroupTensor, Quantization
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder
from penstock.weights.sources import read

FORMATS = [
    {"bits": 4, "group": 32, "sym": True},
    {"bits": 4, "group": 64, "sym": False, "version": "gptq_v2"},
    {"bits": 4, "group": 128, "sym": False, "index": False},
    {"bits": 4, "group": -1, "sym": True, "version": "gptq_v2", "nil_biases": True},
    {"bits": 8, "group": 32, "sym": False, "desc_act": True},
    {"bits": 8, "group": -1, "sym": True},
    {"bits": 8, "group": 128, "sym": True, "version": "gptq_v2"},
    {"bits": 3, "group": 32, "sym": True},
    {"bits": 3, "group": 64, "sym": False, "version": "gptq_v2"},
    {"bits": 2, "group": 128, "sym": False},
]


SHUFFLED = {"bits": 4, "group": 32, "sym": False, "shuffled": True, "desc_act": True}
ANY_ORDER = [
    {"bits": bits, "group": group, "sym": sym, "shuffled": True, "desc_act": True}
    for bits in (4, 8)
    for group, sym in ((32, True), (32, False), (64, False))
]


@pytest.mark.parametrize("form", [*FORMATS, SHUFFLED], ids=str)
def test_every_value_is_the_one_that_is_stored(tmp_path: Path, form: Any) -> None:
    packed, floats = gptq_checkpoint(tmp_path, **form)
    spec = load_model_spec(packed)
    plan, plain = lower(spec), lower(load_model_spec(floats))
    ours = open_weights(packed, spec, plan.weights)
    theirs = open_weights(floats, plain.spec, plain.weights)
    quantized = set()
    for name in plan.weights:
        value, expected = ours.get(name), theirs.get(name)
        assert isinstance(expected, np.ndarray)
        if isinstance(value, GroupTensor):
            quantized.add(name)
            np.testing.assert_array_equal(value.dequantize(), expected)
        else:
            np.testing.assert_array_equal(value, expected)
    products = {op.parts[0].weight for op in plan.ops if isinstance(op, Linear)}
    assert quantized == products - {"head"}
    schemes = {op.scheme for op in plan.ops if isinstance(op, Linear)}
    size = None if form["group"] == -1 else form["group"]
    zeros = not form["sym"] or form["bits"] == 8
    assert schemes == {None, GroupScheme(8 if form["bits"] == 8 else 4, size, zeros)}


@pytest.mark.parametrize("form", [*FORMATS, SHUFFLED], ids=str)
def test_logits_are_those_of_the_float_model(tmp_path: Path, form: Any) -> None:
    packed, floats = gptq_checkpoint(tmp_path, **form)
    expected = logits(floats, "reference")
    np.testing.assert_allclose(logits(packed, "reference"), expected, rtol=0, atol=2e-4)


def test_rows_of_fused_matrices(tmp_path: Path) -> None:
    """Phi-3 has queries, keys and values in one matrix, and gate and up in another."""
    packed, floats = gptq_checkpoint(tmp_path, family="phi3", sym=False)
    sources = [weight.source for weight in lower(load_model_spec(packed)).weights.values()]
    assert sum(isinstance(source, RowsOf) for source in sources) == 2 * 5
    expected = logits(floats, "reference")
    np.testing.assert_allclose(logits(packed, "reference"), expected, rtol=0, atol=2e-4)


@pytest.mark.thinned(3)
@needs_native
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("form", [*FORMATS, SHUFFLED], ids=str)
def test_the_cpu_computes_what_the_reference_does(
    tmp_path: Path, form: Any, activations: bool
) -> None:
    packed, _ = gptq_checkpoint(tmp_path, **form)
    got, expected = (logits(packed, backend, activations) for backend in ("cpu", "reference"))
    if not activations:
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)
        return
    # A value on the border between two codes may go either way.
    assert np.quantile(np.abs(got - expected), 0.9) < 0.05
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.999


@needs_native
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("activations", [False, True])
def test_a_zero_point_of_sixteen(tmp_path: Path, isa: str, activations: bool) -> None:
    """The first version stores it as 15, and no code is as large."""
    packed, floats = gptq_checkpoint(tmp_path, sym=False, zero=16)
    spec = load_model_spec(packed)
    expected = logits(floats, "reference")
    np.testing.assert_allclose(logits(packed, "reference"), expected, rtol=0, atol=2e-4)
    plan = fuse(lower(spec, "float32", quantization=Quantization(activations=activations)))
    got = native_logits(packed, plan, isa, "float32")
    reference = logits(packed, "reference", activations)
    limit = 0.05 if activations else 2e-4
    assert np.quantile(np.abs(got - reference), 0.9 if activations else 1) < limit


@pytest.mark.thinned(5)
@needs_native
@pytest.mark.parametrize("form", ANY_ORDER, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("isa", native.runnable())
def test_matrices_whose_columns_have_orders_of_their_own(
    tmp_path: Path, form: Any, dtype: Any, activations: bool, isa: str
) -> None:
    """Each has another, those of one input too."""
    packed, _ = gptq_checkpoint(tmp_path, **form)
    assert_columns_in_any_order(packed, isa, activations, dtype)


@needs_native
def test_an_order_that_the_configuration_does_not_tell_of_is_refused(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path, **SHUFFLED | {"desc_act": False})
    problem = r"layers\.0\.q groups columns.*says desc_act true.*desc_act false or static"
    with pytest.raises(WeightError, match=problem):
        logits(packed, "cpu")


def test_rows_of_a_quantized_matrix(tmp_path: Path) -> None:
    packed, floats = gptq_checkpoint(tmp_path, sym=False)
    form = Gptq(4, 32, symmetric=False, zeros_less_one=True)
    name = "model.layers.0.mlp.up_proj"
    source = RowsOf(Packed(name, (96, 64), form), ((8, 20), (2, 3)))
    part = read(source, open_folder(packed), "float32")
    assert isinstance(part, GroupTensor)
    whole = open_folder(floats)[f"{name}.weight"][0].view(f"{name}.weight")
    np.testing.assert_array_equal(part.dequantize(), np.concatenate([whole[8:20], whole[2:3]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 5}, r"bits .5. is not supported for integers; supported are 2, 3, 4 and 8"),
        (
            {"group_size": 48},
            "group_size .48. is not supported; supported are 32, 64, 128, multiples",
        ),
        ({"checkpoint_format": "marlin"}, "supported are gptq and gptq_v2"),
        ({"dynamic": {"-:(": {}}}, "'[(]', which is no regular expression"),
        ({"dynamic": {".*": {"rank": 8}}}, "rank .8. is not a field Penstock knows"),
        ({"dynamic": {".*": {"bits": 5}}}, "dynamic: .*bits .5. is not supported"),
        ({"modules_in_block_to_quantize": [[3]]}, "must be a list of lists of names"),
        ({"is_marlin_format": True}, "Marlin"),
        ({"pack_dtype": "int16"}, "pack_dtype"),
        ({"sym": 1}, "sym .1. must be true or false"),
        ({"rotation": "hadamard"}, "rotation .'hadamard'. is not a field Penstock knows"),
        ({"quant_method": "hqq"}, "quant_method .'hqq'. is not supported; supported are gptq"),
        ({"quant_method": None}, "quant_method .* is required"),
    ],
)
def test_what_would_be_read_wrongly_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    packed, _ = gptq_checkpoint(tmp_path)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] |= fields
    with pytest.raises(ModelError, match=message):
        read_spec(config)


Q = "model.layers.1.self_attn.q_proj"


def with_first(x: Any, value: float) -> Any:
    x[0, 0] = value
    return x


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (f"{Q}.qweight", None, f"lacks tensor '{Q}.qweight'.*matrix '{Q}': .*is incomplete"),
        (f"{Q}.qzeros", None, f"lacks tensor '{Q}.qzeros'.*matrix '{Q}': .*is incomplete"),
        (f"{Q}.scales", None, f"lacks tensor '{Q}.scales'.*matrix '{Q}': .*is incomplete"),
        (f"{Q}.g_idx", None, f"lacks tensor '{Q}.g_idx'.*matrix '{Q}': .*is incomplete"),
        (
            "model.layers.1.input_layernorm.weight",
            None,
            r"lacks tensor 'model\.layers\.1\.input_layernorm\.weight'.*is incomplete",
        ),
        (f"{Q}.qweight", lambda x: x[:-1].copy(), r"shape \[7, 64\].*asks for \[8, 64\]"),
        (f"{Q}.qweight", lambda x: x.astype(np.int64), "stored as I64.*packed codes in I32"),
        (f"{Q}.scales", lambda x: x.astype(np.int32), "I32, but it is read in F32, BF16 or F16"),
        (f"{Q}.scales", lambda x: x.astype(np.float64), "F64, but it is read in F32, BF16 or F16"),
        (f"{Q}.g_idx", lambda x: x * 0, "does not give every group 32 columns"),
        (f"{Q}.g_idx", lambda x: x[:-1].copy(), r"shape \[63\]"),
        (f"{Q}.qzeros", lambda x: x + 1, r"sym is true; most likely checkpoint_format \('gptq'\)"),
        (f"{Q}.scales", lambda x: -x, "negative scales, which quantization never"),
        (f"{Q}.scales", lambda x: with_first(x, -1e-3), f"'{Q}.scales' has negative scales"),
        (f"{Q}.scales", lambda x: x * np.float16(np.nan), "not finite"),
        (f"{Q}.bias", lambda x: x + 1, r"1 tensor.s. have no place in the model: .*bias"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    packed, _ = gptq_checkpoint(tmp_path, nil_biases=True)
    edit_tensors(packed, **{name: change})
    spec = load_model_spec(packed)
    weights = lower(spec).weights
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, weights).get("layers.1.q")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_symmetric_codes_of_the_other_version(tmp_path: Path, bits: int, version: str) -> None:
    packed, _ = gptq_checkpoint(tmp_path, bits=bits, version=version)
    config = json.loads((packed / "config.json").read_text())
    other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[version]
    config["quantization_config"]["checkpoint_format"] = other
    (packed / "config.json").write_text(json.dumps(config))
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=f"set checkpoint_format to '{version}'") as caught:
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")
    assert f"zero points other than {2 ** (bits - 1)}" in str(caught.value)


@pytest.mark.parametrize("form", [{"sym": True}, {"sym": False}, SHUFFLED], ids=str)
@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_group_of_zeros_needs_no_scale(tmp_path: Path, form: Any, scale: float) -> None:
    """Whatever its scale, as all its codes are the zero point: here 9, or 8 if symmetric."""
    packed, _ = gptq_checkpoint(tmp_path, **form)
    zero = 8 if form["sym"] else 9
    spec = load_model_spec(packed)
    path = packed / "model.safetensors"
    tensors = load_file(path)
    its = tensors[f"{Q}.g_idx"] == 1
    codes = np.array([[word >> 4 * i & 15 for i in range(8)] for word in tensors[f"{Q}.qweight"]])
    codes = codes.reshape(len(its), -1)  # [k, n]
    codes[its, 3] = zero
    points = tensors[f"{Q}.qzeros"].view(np.uint32)
    points[1, 0] = points[1, 0] & np.uint32(0xFFFF0FFF) | np.uint32((zero - 1) << 12)
    tensors[f"{Q}.qweight"] = pack_along_rows(codes.astype(np.int64), 4)
    tensors[f"{Q}.scales"][1, 3] = scale
    save_file(tensors, path)
    value = open_weights(packed, spec, lower(spec).weights).get("layers.1.q")
    assert isinstance(value, GroupTensor)
    values = value.dequantize()
    assert not values[3, its].any()
    assert values[3, ~its].any()
    codes[np.flatnonzero(its)[-1], 3] = zero + 1
    tensors[f"{Q}.qweight"] = pack_along_rows(codes.astype(np.int64), 4)
    save_file(tensors, path)
    if scale == 0:  # whatever its codes are: small values round to a scale of 0 in float16
        value = open_weights(packed, spec, lower(spec).weights).get("layers.1.q")
        assert isinstance(value, GroupTensor)
        assert not value.dequantize()[3, its].any()
        return
    with pytest.raises(WeightError, match="negative scales"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_the_last_group_may_be_smaller(tmp_path: Path) -> None:
    """Groups of 64 leave 32 of 96 columns."""
    name = "model.layers.1.mlp.down_proj"
    packed, _ = gptq_checkpoint(tmp_path, group=64)
    spec = load_model_spec(packed)
    path = packed / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{name}.qweight"][8:, 3] = np.uint32(0x88888888).astype(np.int32)
    tensors[f"{name}.scales"][1, 3] = -0.5
    save_file(tensors, path)
    open_weights(packed, spec, lower(spec).weights).get("layers.1.down")
    tensors[f"{name}.qweight"][8, 3] += 1
    save_file(tensors, path)
    with pytest.raises(WeightError, match="negative scales"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.down")


def test_a_zero_point_that_no_byte_holds(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path, bits=8, sym=False, zero=256)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"zero points of 256.*gptq_v2"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_sizes_that_cannot_be_packed(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path)
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    with pytest.raises(ModelError, match=r"100 rows and 64 columns.*multiples of 8"):
        open_weights(packed, spec := load_model_spec(packed), lower(spec).weights)


def test_tensors_that_the_configuration_does_not_tell_of(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path)
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (packed / "config.json").write_text(json.dumps(config))
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"has 'model.*quantization_config in config\.json"):
        open_weights(packed, spec, lower(spec).weights)
