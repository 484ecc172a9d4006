"""Checkpoints in compressed-tensors' formats: exactly the values that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.compressed_configs import FLOAT, INT, NAIVE, PACK, config, floats, group, integers
from support.needs import Need, needs_native
from support.packed_floats import fp8, nvfp4
from support.packed_integers import ints
from support.quantized_checkpoints import (
    Pack,
    assert_values,
    load,
    logits,
    quantized_checkpoint,
)

from penstock.quant import GroupScheme
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"


STATIC = {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}
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
    pytest.param(PACK, integers(3, "group", 32), ints(3), GroupScheme(4, 32), id="w3"),
    pytest.param(
        PACK,
        integers(3, "group", 64, symmetric=False, zp_dtype="torch.int8"),
        ints(3, 64, symmetric=False),
        GroupScheme(4, 64, True),
        id="w3-asymmetric",
    ),
    pytest.param(
        PACK,
        integers(2, "group", 32, symmetric=False, actorder="group"),
        ints(2, 32, symmetric=False, order=True),
        GroupScheme(4, 32, True),
        id="w2-order",
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


@pytest.mark.thinned(3)
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


@pytest.mark.parametrize(
    ("weights", "n", "k"),
    [
        (W4, 24, 64),
        (W4 | {"symmetric": False}, 20, 96),
        (integers(4, "channel", symmetric=False), 21, 64),
        (integers(4, "channel"), 16, 30),
        (integers(8, "channel", symmetric=False), 18, 64),
        (integers(8, "group", 128), 16, 256),
        (integers(3, "group", 32, symmetric=False), 32, 96),
        (integers(2, "channel"), 16, 30),
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
