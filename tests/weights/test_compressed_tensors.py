"""Checkpoints in compressed-tensors' formats: exactly the values that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.needs import Need, needs_native
from support.packed_floats import fp8, nvfp4
from support.packed_integers import ints
from support.quantized_checkpoints import (
    Pack,
    assert_values,
    edit_tensors,
    load,
    logits,
    quantized_checkpoint,
)

from penstock.errors import ModelError, WeightError
from penstock.plan.lower import lower
from penstock.quant import GroupScheme
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"


def group(weights: dict[str, Any], *targets: str, **fields: Any) -> dict[str, Any]:
    return {
        "targets": list(targets) or ["Linear"],
        "weights": {"dynamic": False, "observer": "minmax", "observer_kwargs": {}, **weights},
        "input_activations": None,
        "output_activations": None,
        **fields,
    }


def config(form: str, *groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {f"group_{i}": each for i, each in enumerate(groups)},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
        **fields,
    }


def integers(bits: int, strategy: str, size: int | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": size,
        **fields,
    }


def floats(bits: int, strategy: str, **fields: Any) -> dict[str, Any]:
    own = {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy}
    return {**own, "group_size": None, **fields}


STATIC = {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}
PACK, INT, FLOAT, NAIVE = (f"{kind}-quantized" for kind in ("pack", "int", "float", "naive"))
KEPT: list[Any] = [
    pytest.param(PACK, integers(4, "group", 32), ints(), GroupScheme(4, 32), id="w4"),
    pytest.param(
        PACK,
        integers(4, "group", 64, symmetric=False, zp_dtype="torch.int8"),
        ints(4, 64, symmetric=False),
        GroupScheme(4, 64, True),
        id="w4-asymmetric",
    ),
    pytest.param(
        PACK,
        integers(4, "channel", symmetric=False),
        ints(4, "row", symmetric=False),
        GroupScheme(4, None, True),
        id="w4-rows",
    ),
    pytest.param(PACK, integers(4, "channel", -1), ints(4, "row"), GroupScheme(4, None), id="-1"),
    pytest.param(
        PACK,
        integers(4, "tensor", symmetric=False),
        ints(4, "matrix", symmetric=False),
        GroupScheme(4, None, True),
        id="w4-matrix",
    ),
    pytest.param(
        PACK,
        integers(4, "group", 32, symmetric=False, actorder="group"),
        ints(4, 32, symmetric=False, order=True),
        GroupScheme(4, 32, True),
        id="w4-order",
    ),
    pytest.param(
        PACK,
        integers(4, "group", 32, actorder="static"),
        ints(),
        GroupScheme(4, 32),
        id="w4-static-order",
    ),
    pytest.param(PACK, integers(8, "group", 32), ints(8), GroupScheme(8, 32, True), id="w8"),
    pytest.param(
        PACK,
        integers(8, "channel", symmetric=False),
        ints(8, "row", symmetric=False),
        GroupScheme(8, None, True),
        id="w8-asymmetric",
    ),
    pytest.param(
        INT,
        integers(8, "channel"),
        ints(8, "row", packed=False),
        GroupScheme(8, None, True),
        id="w8a8",
    ),
    pytest.param(
        INT,
        integers(8, "channel", symmetric=False),
        ints(8, "row", packed=False, symmetric=False),
        GroupScheme(8, None, True),
        id="w8a8-asymmetric",
    ),
    pytest.param(
        NAIVE,
        integers(8, "tensor"),
        ints(8, "matrix", packed=False, flat=True),
        GroupScheme(8, None, True),
        id="w8a8-matrix",
    ),
    pytest.param(
        INT, integers(4, "channel"), ints(4, "row", packed=False), GroupScheme(4, None), id="int4"
    ),
]


@pytest.mark.parametrize(("form", "weights", "pack", "scheme"), KEPT)
def test_integers_keep_their_values(
    tmp_path: Path, form: str, weights: Any, pack: Pack, scheme: GroupScheme
) -> None:
    own = config(form, group(weights, input_activations=STATIC))
    packed, plain = quantized_checkpoint(tmp_path, own, pack, intermediate_size=128)
    kept = assert_values(packed, plain)
    assert len(kept) == 2 * 7
    assert {value.scheme for value in kept.values()} == {scheme}
    np.testing.assert_allclose(logits(packed), logits(plain), rtol=0, atol=2e-4)


@needs_native
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize(("form", "weights", "pack", "scheme"), KEPT)
def test_the_cpu_computes_what_the_reference_does(
    tmp_path: Path, form: str, weights: Any, pack: Pack, scheme: GroupScheme, activations: bool
) -> None:
    own = config(form, group(weights))
    packed, _ = quantized_checkpoint(tmp_path, own, pack, intermediate_size=128)
    got, expected = (logits(packed, backend, activations) for backend in ("cpu", "reference"))
    if not activations:
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)
        return
    # A value on the border between two codes may go either way.
    assert np.quantile(np.abs(got - expected), 0.9) < 0.05


FLOATS: list[Any] = [
    pytest.param(
        PACK, integers(4, "group", 16, symmetric=False), ints(4, 16, symmetric=False), id="w4-by-16"
    ),
    pytest.param(FLOAT, floats(8, "tensor"), fp8((None, None), "weight_scale"), id="fp8"),
    pytest.param(FLOAT, floats(8, "channel"), fp8((1, None), "weight_scale"), id="fp8-rows"),
    pytest.param(NAIVE, floats(8, "channel"), fp8((1, None), "weight_scale"), id="fp8-naive"),
    pytest.param(
        FLOAT,
        floats(8, "block", block_structure=[32, 64]),
        fp8((32, 64), "weight_scale"),
        id="fp8-blocks",
    ),
    pytest.param(
        FLOAT,
        floats(8, "block", block_structure="32x64"),
        fp8((32, 64), "weight_scale"),
        id="fp8-blocks-as-text",
    ),
    pytest.param(
        "mxfp8-quantized",
        floats(8, "group", group_size=32),
        fp8((1, 32), "weight_scale", e8m0=True),
        id="mxfp8",
    ),
    pytest.param(
        "nvfp4-pack-quantized",
        floats(4, "tensor_group", group_size=16),
        nvfp4(16, "weight_global_scale", True, "weight_packed"),
        id="nvfp4",
    ),
    pytest.param(
        "mxfp4-pack-quantized",
        floats(4, "group", group_size=32),
        nvfp4(32, None, False, "weight_packed"),
        id="mxfp4",
    ),
]


@pytest.mark.parametrize(("form", "weights", "pack"), FLOATS)
def test_what_kernels_do_not_have_becomes_floats(
    tmp_path: Path, form: str, weights: Any, pack: Pack
) -> None:
    own = config(form, group(weights), kv_cache_scheme={"num_bits": 8, "type": "float"})
    packed, plain = quantized_checkpoint(tmp_path, own, pack)
    assert not assert_values(packed, plain)
    spec = load_model_spec(packed)
    assert spec.quantized is not None
    assert spec.quantized.schemes == ()
    assert len(spec.quantized.as_floats) == 1
    assert "KV cache" in spec.quantized.notes[0]


def by_module(*rules: tuple[str, Pack | None]) -> Pack:
    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        chosen = next((each for part, each in rules if part in f"{module}."), None)
        return None if chosen is None else chosen(generator, module, n, k)

    return pack


def test_each_module_is_in_the_group_that_is_most_its_own(tmp_path: Path) -> None:
    """Names come before expressions, and these before the class, whatever their order."""
    own = config(
        "mixed-precision",
        group(integers(8, "channel"), format=INT),
        group(integers(4, "group", 32), r"re:.*mlp\.(gate|up)_proj$", format=PACK),
        group(floats(8, "channel"), "model.layers.1.mlp.up_proj", "lm_head", format=FLOAT),
        ignore=[r"re:.*\.0\.self_attn\.", "model.layers.1.self_attn.v_proj"],
    )
    pack = by_module(
        ("0.self_attn", None),
        ("1.self_attn.v_proj", None),
        ("1.mlp.up_proj", fp8((1, None), "weight_scale", ())),
        ("lm_head", fp8((1, None), "weight_scale", ())),
        ("mlp.gate_proj", ints()),
        ("mlp.up_proj", ints()),
        ("", ints(8, "row", packed=False)),
    )
    packed, plain = quantized_checkpoint(tmp_path, own, pack)
    kept = assert_values(packed, plain)
    assert {name: value.scheme.bits for name, value in kept.items()} == {
        "layers.0.gate": 4,
        "layers.0.up": 4,
        "layers.0.down": 8,
        "layers.1.gate": 4,
        "layers.1.down": 8,
        "layers.1.q": 8,
        "layers.1.k": 8,
        "layers.1.o": 8,
    }
    np.testing.assert_allclose(logits(packed), logits(plain), rtol=0, atol=2e-4)
    np.testing.assert_allclose(logits(packed, "cpu"), logits(plain), rtol=0, atol=2e-4)


def test_the_head_is_linear_too(tmp_path: Path) -> None:
    own = config(PACK, group(integers(4, "group", 32)), ignore=[])
    packed, plain = quantized_checkpoint(tmp_path, own, ints(skipped=()))
    assert "head" in assert_values(packed, plain)


def test_experts(tmp_path: Path) -> None:
    own = config(PACK, group(integers(4, "group", 32)), ignore=["lm_head", "re:.*gate$"])
    pack = ints(skipped=("lm_head", ".gate."))
    packed, plain = quantized_checkpoint(tmp_path, own, pack, family="mixtral")
    np.testing.assert_allclose(logits(packed), logits(plain), rtol=0, atol=2e-4)


@needs_native
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
def test_matrices_of_single_heads_become_floats(tmp_path: Path, family: str) -> None:
    """Those that take heads to latents and back, in one matrix of the checkpoint."""
    own = config(PACK, group(integers(4, "channel")), ignore=["lm_head", "re:.*gate$"])
    pack = ints(4, "row", skipped=("lm_head", "mlp.gate."))
    packed, plain = quantized_checkpoint(tmp_path, own, pack, family=family)
    for backend in ("reference", "cpu"):
        np.testing.assert_allclose(logits(packed, backend), logits(plain), rtol=0, atol=2e-4)


def test_rows_of_fused_matrices(tmp_path: Path) -> None:
    own = config(PACK, group(integers(4, "group", 32)))
    packed, plain = quantized_checkpoint(tmp_path, own, ints(), family="phi3")
    assert len(assert_values(packed, plain)) == 2 * 7


W4 = integers(4, "group", 32)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (config("marlin-24", group(W4)), "'marlin-24' is not supported; supported are pack"),
        (config("dense", group(W4)), "'dense' is not supported"),
        (config("mixed-precision", group(W4)), "format .* is required beside mixed-precision"),
        (config(PACK), "config_groups .* must have a group"),
        (config(PACK, group(W4, "Embedding")), "targets .* has 'Embedding'"),
        (config(PACK, group(W4, "re:(")), "'[(]', which is no regular expression"),
        (config(PACK, group(W4), ignore=["re:["]), "ignore .*no regular expression"),
        (config(PACK, group(W4 | {"num_bits": 3})), "num_bits .3. is not supported"),
        (config(PACK, group(W4 | {"group_size": None})), "group with a group_size"),
        (config(PACK, group(W4 | {"type": "float"})), "num_bits .4. is not supported with type"),
        (config(FLOAT, group(W4)), "format 'float-quantized'"),
        (config(FLOAT, group(floats(8, "tensor", symmetric=False))), "symmetric .False. must"),
        (config(FLOAT, group(floats(8, "block"))), "block with its structure"),
        (config(FLOAT, group(floats(8, "block", block_structure=[1]))), "must be two integers"),
        (config(PACK, group(integers(8, "group", 16))), "group_size .16. is not supported"),
        (config(PACK, group(W4 | {"dynamic": True})), "dynamic .True. must be false"),
        (config(PACK, group(W4, output_activations=STATIC)), "output_activations .*not supported"),
        (config(PACK, group(W4), transform_config={"a": 1}), "transform_config .*not supported"),
        (
            config(PACK, group(W4), sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config .*not supported",
        ),
        (config(PACK, group(W4), rotations=1), "rotations .1. is not a field Penstock knows"),
        (config(PACK, group(W4 | {"rank": 2})), "rank .2. is not a field Penstock knows"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, own: Any, message: str) -> None:
    packed, _ = quantized_checkpoint(tmp_path, own, ints())
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


def test_a_module_of_two_groups(tmp_path: Path) -> None:
    own = config(PACK, group(W4, "re:.*mlp.*"), group(integers(8, "channel"), "re:.*gate_proj"))
    packed, _ = quantized_checkpoint(tmp_path, own, ints())
    with pytest.raises(ModelError, match=r"mlp.gate_proj in .* a module must be in one group"):
        lower(load_model_spec(packed))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight_packed", None, f"lacks tensor '{Q}.weight_packed'.*incomplete"),
        ("weight_scale", None, f"lacks tensor '{Q}.weight_scale'.*incomplete"),
        ("weight_zero_point", None, f"lacks tensor '{Q}.weight_zero_point'.*incomplete"),
        ("weight_g_idx", None, f"lacks tensor '{Q}.weight_g_idx'.*incomplete"),
        ("weight_g_idx", lambda x: x * 0, "does not give every group 32 columns"),
        ("weight_scale", lambda x: x * 0, "no scale but 0"),
        ("weight_scale", lambda x: -x, "negative scales"),
        ("weight_scale", lambda x: x * np.nan, "not finite"),
        (
            "weight_shape",
            lambda x: x[::-1] * 2,
            r"says that the matrix is \[128, 128\].*\[64, 64\]",
        ),
        ("weight_scale", lambda x: x[:, :1].copy(), r"shape \[64, 1\].*asks for \[64, 2\]"),
        ("weight_packed", lambda x: x.astype(np.int64), "stored as I64.*packed codes in I32"),
        ("bias", lambda x: x, "have no place in the model"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    weights = integers(4, "group", 32, symmetric=False, actorder="group")
    pack = ints(symmetric=False, order=True)
    extra = {f"{Q}.bias": np.ones(64, np.float32)} if name == "bias" else None
    packed, _ = quantized_checkpoint(tmp_path, config(PACK, group(weights)), pack, extra=extra)
    edit_tensors(packed, {f"{Q}.{name}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_columns_in_order_may_be_marked_as_such(tmp_path: Path) -> None:
    weights = integers(4, "group", 32, actorder="group")
    packed, plain = quantized_checkpoint(tmp_path, config(PACK, group(weights)), ints())
    index = {
        f"model.layers.{i}.{name}.weight_g_idx": np.full(k, -1, np.int32)
        for i in range(2)
        for name, k in (
            *((f"self_attn.{x}_proj", 64) for x in "qkvo"),
            ("mlp.gate_proj", 64),
            ("mlp.up_proj", 64),
            ("mlp.down_proj", 96),
        )
    }
    save_file(load(packed) | index, packed / "model.safetensors")
    kept = assert_values(packed, plain)
    assert all(value.order is None for value in kept.values())


def test_codes_of_more_bits_than_are_said(tmp_path: Path) -> None:
    pack = ints(8, "row", packed=False)
    packed, _ = quantized_checkpoint(tmp_path, config(INT, group(integers(4, "channel"))), pack)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"codes from -128 to 127.*num_bits is 4"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


@pytest.mark.parametrize(
    ("weights", "n", "k"),
    [
        (W4, 24, 64),
        (W4 | {"symmetric": False}, 20, 96),
        (integers(4, "channel", symmetric=False), 21, 64),
        (integers(4, "channel"), 16, 30),
        (integers(8, "channel", symmetric=False), 18, 64),
        (integers(8, "group", 128), 16, 256),
    ],
)
def test_the_package_packs_the_same_way(weights: Any, n: int, k: int) -> None:
    """Our packing code for these tests, against compressed-tensors' own."""
    torch = pytest.importorskip("torch")
    helpers = pytest.importorskip(
        "compressed_tensors.compressors.pack_quantized.helpers",
        reason=Need.PACKAGE.reason("compressed-tensors"),
    )
    span = weights["group_size"] or "row"
    bits, symmetric = weights["num_bits"], weights["symmetric"]
    made = ints(bits, span, symmetric=symmetric)(np.random.default_rng(0), "x", n, k)
    assert made is not None
    tensors, _ = made
    codes = helpers.unpack_from_int32(
        torch.from_numpy(tensors["weight_packed"]), bits, torch.Size((n, k))
    )
    again = helpers.pack_to_int32(codes, bits)
    np.testing.assert_array_equal(again.numpy(), tensors["weight_packed"])
    if not symmetric:
        groups = tensors["weight_scale"].shape[1]
        zeros = helpers.unpack_from_int32(
            torch.from_numpy(tensors["weight_zero_point"]), bits, (n, groups), packed_dim=0
        )
        again = helpers.pack_to_int32(zeros, bits, packed_dim=0)
        np.testing.assert_array_equal(again.numpy(), tensors["weight_zero_point"])
