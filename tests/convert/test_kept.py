"""What a checkpoint has quantized keeps its values in a GGUF file, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.gguf_models import SAID

from penstock.backends.registry import backend
from penstock.convert.conversion import Converted, convert
from penstock.convert.kept_blocks import block_type, blocks_of
from penstock.convert.types import KEPT, file_type
from penstock.errors import ConfigError, ModelError, WeightError
from penstock.plan.lower import lower
from penstock.quant import GroupTensor, StoredTensor
from penstock.quant.formats import GGUF_FORMATS
from penstock.quant.scheme import GroupScheme
from penstock.quantize.forms import w8a8
from penstock.quantize.forms.form import Form
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.forms.small_floats import Fp8, Mxfp4
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import RoundToNearest
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import quantize
from penstock.quantize.source import SourceModel
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec


def integers(
    bits: int, group: int | None = 32, symmetric: bool = True, form: str = "gptq"
) -> Integers:
    storage = STORAGES[form]
    return Integers(IntegerGrid(bits, group, symmetric, storage.scale_dtype("bfloat16")), storage)


FORMS: dict[str, tuple[Form, str]] = {
    "4 bits": (integers(4), "Q4_0"),
    "4 bits of compressed-tensors": (integers(4, form="compressed-tensors"), "Q4_0"),
    "4 bits of awq": (integers(4, form="awq"), "Q5_0"),
    "3 bits": (integers(3, form="compressed-tensors"), "Q4_0"),
    "rows": (integers(4, None), "Q4_0"),
    "64 columns": (integers(4, 64), "Q4_0"),
    "zero points": (integers(4, symmetric=False), "Q5_0"),
    "8 bits": (integers(8), "Q8_0"),
    "bytes": (Integers(IntegerGrid(8, None, True, "bfloat16"), w8a8), "Q8_0"),
    "mxfp4": (Mxfp4(), "MXFP4"),
}


def quantized(folder: Path, form: Form, out: Path) -> Path:
    work = Quantization(SourceModel(folder), RoundToNearest(form))
    return quantize(work, out, backend("reference").bind, 1).folder


def values(folder: Path) -> dict[str, Any]:
    spec = load_model_spec(folder)
    weights = open_weights(folder, spec, lower(spec, "float32").weights, "float32")
    found: dict[str, Any] = {}
    for name in weights.names():
        if ".experts." in name:
            for index in range(6):
                found[f"{name} {index}"] = floats(weights.member(name, index))
        else:
            found[name] = floats(weights.get(name))
    return found


def floats(value: Any) -> Any:
    return value.dequantize() if isinstance(value, StoredTensor) else np.asarray(value)


def kept(folder: Path, target: Path) -> Converted:
    return convert(folder, target, KEPT, threads=2)


@pytest.mark.parametrize("name", FORMS)
def test_a_file_has_the_values_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    form, kind = FORMS[name]
    floats = tiny_checkpoint("llama", dtype="bfloat16", intermediate_size=128)
    folder = quantized(floats, form, tmp_path / "folder")
    done = kept(folder, tmp_path / "model.gguf")
    assert done.types == {kind: 14, "F32": 5, "BF16": 2}
    assert done.taken == 14
    assert not any("once more" in note for note in done.notes)
    own, expected = values(done.path), values(folder)
    assert own.keys() == expected.keys()
    assert all(np.array_equal(own[each], expected[each]) for each in expected)
    # As the gguf package decodes them.
    reader = gguf.GGUFReader(done.path)
    tensors = {each.name: each for each in reader.tensors}
    down = tensors["blk.1.ffn_down.weight"]
    decoded = gguf.quants.dequantize(down.data, down.tensor_type)
    np.testing.assert_array_equal(decoded, expected["layers.1.down"])


@pytest.mark.parametrize("family", ["qwen3_moe", "phi3", "gemma3", "olmo2"])
def test_families(family: str, tmp_path: Path) -> None:
    """With stacks of experts, matrices that are joined, and norms that are stored less 1."""
    shape = {**SAID.get(family, {}), "intermediate_size": 128}
    if family == "qwen3_moe":
        shape["moe_intermediate_size"] = 32
    if family == "phi3":
        shape["sliding_window"] = None
    folder = quantized(tiny_checkpoint(family, **shape), integers(4), tmp_path / "folder")
    done = kept(folder, tmp_path / "model.gguf")
    own, expected = values(done.path), values(folder)
    assert all(np.array_equal(own[each], expected[each]) for each in expected)
    assert done.types["Q4_0"] > 6


def test_other_types_round_once_more_and_say_so(tmp_path: Path) -> None:
    floats = tiny_checkpoint("llama", dtype="bfloat16", intermediate_size=128)
    folder = quantized(floats, integers(4), tmp_path / "folder")
    done = convert(folder, tmp_path / "model.gguf", file_type("q4_1"))
    assert any("rounded once more" in note for note in done.notes)


def test_what_no_file_holds_is_refused(tmp_path: Path) -> None:
    floats = tiny_checkpoint("llama", dtype="bfloat16", intermediate_size=128)
    folder = quantized(floats, Fp8("channel", "bfloat16"), tmp_path / "fp8")
    with pytest.raises(ModelError, match=r"which no GGUF file holds as it is: .*take another"):
        kept(folder, tmp_path / "model.gguf")
    folder = quantized(floats, integers(8, symmetric=False), tmp_path / "zeros")
    with pytest.raises(WeightError, match=r"zero points of 8 bits, .*without --asymmetric"):
        kept(folder, tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="has nothing quantized whose values could be kept"):
        kept(floats, tmp_path / "model.gguf")
    folder = quantized(floats, integers(4), tmp_path / "four")
    done = kept(folder, tmp_path / "four.gguf")
    with pytest.raises(ConfigError, match="is a GGUF file"):
        kept(done.path, tmp_path / "model.gguf")
    assert not list(tmp_path.glob("model*"))


def test_scales_that_no_file_holds_are_refused(tmp_path: Path) -> None:
    grid = IntegerGrid(4, 32, True, "float32")
    form = Integers(grid, STORAGES["compressed-tensors"])
    folder = quantized(tiny_checkpoint("llama", intermediate_size=128), form, tmp_path / "folder")
    with pytest.raises(WeightError, match=r"scales that are no float16, .*--format gptq"):
        kept(folder, tmp_path / "model.gguf")
    assert not list(tmp_path.glob("*.gguf"))


@given(data=st.data())
def test_blocks_decode_to_the_same_values(data: st.DataObject) -> None:
    bits, zeros = data.draw(st.sampled_from([(4, False), (4, True), (8, False)]))
    size = data.draw(st.sampled_from([32, 64, None]))
    scheme = GroupScheme(bits, size, zeros)
    seed = data.draw(st.integers(0, 2**32 - 1))
    draw = np.random.default_rng(seed)
    n, k = 3, 32 * data.draw(st.integers(1, 4))
    if size is not None and k % size:
        k = size
    low, high = (-8, 7) if bits == 4 else (-128, 127)
    groups = scheme.groups(k)
    tensor = GroupTensor(
        scheme,
        draw.integers(low, high, (n, k), np.int8, endpoint=True),
        draw.normal(size=(n, groups)).astype(np.float16).astype(np.float32),
        draw.integers(low, high, (n, groups), np.int8, endpoint=True) if zeros else None,
    )
    kind = block_type(scheme)
    assert kind is not None
    blocks = blocks_of(tensor, kind, "a matrix")
    form = GGUF_FORMATS[kind]
    decoded = form.decode(blocks.reshape(-1, form.scheme.block_bytes)).reshape(n, k)
    np.testing.assert_array_equal(decoded, tensor.dequantize())
