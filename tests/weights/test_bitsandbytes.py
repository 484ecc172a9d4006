"""bitsandbytes' checkpoints: the values that they stand for, by tables that they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.needs import Need, needs_native
from support.packed_bnb import four
from support.quantized_checkpoints import (
    assert_values,
    edit_config,
    edit_tensors,
    logits,
    quantized_checkpoint,
)

from penstock.errors import ModelError, WeightError
from penstock.interface.sources import Packed
from penstock.models.bitsandbytes import Bnb4
from penstock.plan.lower import lower
from penstock.quant import GroupScheme
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder
from penstock.weights.sources import read

Q = "model.layers.1.self_attn.q_proj"
STATE = "weight.quant_state.bitsandbytes__nf4"
NF4: dict[str, Any] = {
    "quant_method": "bitsandbytes",
    "_load_in_4bit": True,
    "_load_in_8bit": False,
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": False,
    "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False,
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0,
}
INT8 = {
    **NF4,
    "load_in_4bit": False,
    "load_in_8bit": True,
    "_load_in_4bit": False,
    "_load_in_8bit": True,
}


def eight(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
    if module == "lm_head":
        return None
    codes = generator.integers(-127, 128, (n, k))
    most = (generator.random(n).astype(np.float32) + 1) / np.float32(k**0.5)
    values = codes.astype(np.float32) * (most / np.float32(127))[:, None]
    own = {
        "weight": codes.astype(np.int8),
        "SCB": most,
        "weight_format": np.array(0, np.uint8),
    }
    return own, values


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral"])
def test_codes_of_four_bits(tmp_path: Path, kind: str, nested: bool, family: str) -> None:
    """Blocks of 64 values go on in the next row where rows have 96 columns."""
    own = NF4 | {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}
    pack = four(kind, nested, ("lm_head", ".gate."))
    packed, floats = quantized_checkpoint(tmp_path, own, pack, family=family)
    assert not assert_values(packed, floats)
    spec = load_model_spec(packed)
    assert spec.quantized is not None
    assert spec.quantized.as_floats == (kind.upper(),)


@needs_native
def test_integers(tmp_path: Path) -> None:
    packed, floats = quantized_checkpoint(tmp_path, INT8, eight)
    kept = assert_values(packed, floats)
    assert len(kept) == 2 * 7
    assert {value.scheme for value in kept.values()} == {GroupScheme(8, None)}
    for backend in ("reference", "cpu"):
        np.testing.assert_allclose(logits(packed, backend), logits(floats), rtol=0, atol=2e-4)


def test_modules_that_are_left_out(tmp_path: Path) -> None:
    """The head is quantized unless a list of them names it."""
    own = NF4 | {"llm_int8_skip_modules": ["model.layers.0.mlp", "v_proj"]}
    pack = four(skipped=("layers.0.mlp.", "v_proj"))
    packed, floats = quantized_checkpoint(tmp_path, own, pack)
    assert_values(packed, floats)
    edit_config(packed, llm_int8_skip_modules=["lm_head", "model.layers.0.mlp", "v_proj"])
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match="'lm_head"):
        open_weights(packed, spec, lower(spec).weights).get("head")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (NF4 | {"load_in_8bit": True}, "load_in_4bit .* or load_in_8bit must be true"),
        (NF4 | {"load_in_4bit": None, "_load_in_4bit": False}, "must be true, and not both"),
        (NF4 | {"bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type .'nf3'. must be nf4 or fp4"),
        (NF4 | {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage .* must be uint8"),
        (NF4 | {"bnb_6bit": True}, "bnb_6bit .True. is not a field Penstock knows"),
        (NF4 | {"llm_int8_skip_modules": "lm_head"}, "must be a list of text"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, own: Any, message: str) -> None:
    own = {name: value for name, value in own.items() if value is not None}
    packed, _ = quantized_checkpoint(tmp_path, own, four())
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


def state_with(**fields: Any) -> Any:
    def change(octets: Any) -> Any:
        state = json.loads(octets.tobytes()) | fields
        return np.frombuffer(json.dumps(state).encode(), np.uint8)

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight.absmax", None, f"lacks tensor '{Q}.weight.absmax'.*incomplete"),
        ("weight.nested_absmax", None, f"lacks tensor '{Q}.weight.nested_absmax'.*incomplete"),
        (STATE, None, f"lacks tensor '{Q}.{STATE}'.*incomplete"),
        (STATE, lambda x: x[:-1].copy(), "is not valid JSON"),
        (STATE, state_with(blocksize=128), "has blocksize 128, and is read only with 64"),
        (STATE, state_with(shape=[64, 32]), r"has shape \[64, 32\], and is read only with"),
        (STATE, state_with(nested_offset="x"), "has nested_offset 'x', which is no number"),
        (STATE, state_with(nested_offset=-5.0), "maxima that are not finite or negative"),
        ("weight.nested_absmax", lambda x: x * np.inf, "maxima that are not finite"),
        ("weight.absmax", lambda x: x.astype(np.float32), "stored as F32, but its format .* in U8"),
        ("weight", lambda x: x[:-1].copy(), r"shape \[2047, 1\].*asks for \[2048, 1\]"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    own = NF4 | {"bnb_4bit_use_double_quant": True}
    packed, _ = quantized_checkpoint(tmp_path, own, four(nested=True))
    edit_tensors(packed, {f"{Q}.{name}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("SCB", None, f"lacks tensor '{Q}.SCB'.*incomplete"),
        ("SCB", lambda x: -x, "negative scales"),
        ("SCB", lambda x: x * 0, "no scale but 0"),
        ("weight", lambda x: np.full_like(x, -128), "codes of -128"),
    ],
)
def test_damaged_integers(tmp_path: Path, name: str, change: Any, message: str) -> None:
    packed, _ = quantized_checkpoint(tmp_path, INT8, eight)
    edit_tensors(packed, {f"{Q}.{name}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("n", "k"), [(48, 64), (20, 96), (512, 320)])
def test_the_package_reads_the_same_values(
    tmp_path: Path, kind: Any, nested: bool, n: int, k: int
) -> None:
    """A matrix as bitsandbytes itself packs it."""
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip(
        "bitsandbytes.functional", reason=Need.PACKAGE.reason("bitsandbytes")
    )
    matrix = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    codes, state = functional.quantize_4bit(
        matrix, blocksize=64, quant_type=kind, compress_statistics=nested
    )
    tensors = {f"m.weight.{name}": each.numpy() for name, each in state.as_dict(True).items()}
    save_file(tensors | {"m.weight": codes.numpy()}, tmp_path / "model.safetensors")
    source = Packed("m", (n, k), Bnb4(kind, nested))
    got = read(source, open_folder(tmp_path), "float32")
    # Its code for CPUs begins a block with each row, unlike what it packs: let rows be blocks.
    state.shape = torch.Size((n * k // 64, 64))
    expected = functional.dequantize_4bit(codes, state).numpy().reshape(n, k)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)
