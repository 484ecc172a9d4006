"""Quantized files: their bytes, what is taken over, and what is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint

from penstock.convert.conversion import Converted, convert
from penstock.convert.types import FILE_TYPES
from penstock.errors import ModelError, WeightError
from penstock.gguf.metadata import read_metadata
from penstock.quant.encode import encode
from penstock.weights.model_folder import load_model_spec

LARGE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "head_dim": 64}


def written(model: Path, target: Path, kind: str, threads: int = 2) -> Converted:
    return convert(model, target, FILE_TYPES[kind], threads=threads)


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [name for name in FILE_TYPES if name != "F32"])
def test_each_tensor_is_rounded_to_its_type(kind: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **LARGE)
    written(folder, tmp_path / "plain.gguf", "F32")
    done = written(folder, tmp_path / "q.gguf", kind)
    plain, found = tensors(tmp_path / "plain.gguf"), tensors(tmp_path / "q.gguf")
    assert list(found) == list(plain)
    counts: dict[str, int] = {}
    for name, tensor in found.items():
        values, own = plain[name].data, tensor.tensor_type.name
        counts[own] = counts.get(own, 0) + 1
        if own == "F32":
            expected = values
        elif own == "F16":
            expected = values.astype(np.float16)
        elif own == "BF16":
            expected = values.astype(ml_dtypes.bfloat16).view(np.uint8)
        elif own.endswith("_K"):
            expected = encode(own, values).reshape(len(values), -1)
            again = dequantize(tensor.data, tensor.tensor_type)
            # Steps of 2 and 3 bits are wider than those of 4 and more.
            bound = {"Q2_K": 0.35, "Q3_K": 0.2}.get(own, 0.125)
            assert np.abs(again - values).max() < np.abs(values).max() * bound
        else:
            expected = quantize(values, tensor.tensor_type)
        assert np.array_equal(tensor.data, expected), name
    assert done.types == counts
    assert FILE_TYPES[kind].matrix in counts
    metadata = read_metadata(tmp_path / "q.gguf", ModelError)
    assert metadata["general.file_type"] == FILE_TYPES[kind].number
    blocks = kind not in ("F16", "BF16")
    assert metadata.get("general.quantization_version") == (2 if blocks else None)
    spec = load_model_spec(tmp_path / "q.gguf")
    assert (spec.quantized is not None) == blocks


def test_bytes_do_not_depend_on_threads(tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3_moe", norm_topk_prob=True, moe_intermediate_size=64)
    for threads in (1, 3):
        written(folder, tmp_path / f"{threads}.gguf", "Q4_K_M", threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


def test_sizes_and_places(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    done = written(tiny_checkpoint("llama"), path, "Q8_0")
    assert done.size == path.stat().st_size
    assert all(tensor.data_offset % 32 == 0 for tensor in tensors(path).values())


def test_from_one_file_to_another(tmp_path: Path) -> None:
    """The bytes by way of a file of floats are those of the direct way."""
    folder = tiny_checkpoint("llama", **LARGE)
    plain, direct, again = (tmp_path / f"{name}.gguf" for name in ("plain", "direct", "again"))
    written(folder, plain, "F32")
    written(folder, direct, "Q4_K_M")
    done = written(plain, again, "Q4_K_M")
    assert done.notes == ()
    assert done.taken == sum(count for kind, count in done.types.items() if kind == "F32")
    assert again.read_bytes() == direct.read_bytes() or _same(again, direct)


def _same(a: Path, b: Path) -> bool:
    """Files whose metadata may stand in another order."""
    first, second = tensors(a), tensors(b)
    return read_metadata(a, ModelError) == read_metadata(b, ModelError) and all(
        np.array_equal(first[name].data, second[name].data) for name in first
    )


def test_what_was_quantized_is_decoded_and_noted(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama", **LARGE)
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    written(folder, first, "Q8_0")
    done = written(first, second, "Q4_0")
    assert "Q8_0 were quantized already, and are rounded once more" in done.notes[0]
    assert written(first, tmp_path / "same.gguf", "Q8_0").notes == ()
    before, after = tensors(first), tensors(second)
    for name, tensor in after.items():
        source = before[name]
        if tensor.tensor_type is gguf.GGMLQuantizationType.Q4_0:
            values = dequantize(source.data, source.tensor_type)
            assert np.array_equal(tensor.data, quantize(values, tensor.tensor_type)), name
    plain = tmp_path / "plain.gguf"
    assert written(first, plain, "F32").notes == ()
    for name, tensor in tensors(plain).items():
        source = before[name]
        assert np.array_equal(tensor.data, dequantize(source.data, source.tensor_type)), name


def test_metadata_are_taken_over(tmp_path: Path) -> None:
    """Also those that Penstock does not know; what says how a file is split is not."""
    path = tmp_path / "plain.gguf"
    written(tiny_checkpoint("llama"), path, "F16")
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "more.gguf", "llama")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture", "tokenizer.ggml.merges")):
            kind = field.types[0]
            sub = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub)
    writer.add_uint64("general.some.count", 1 << 40)
    writer.add_array("general.some.list", [1.5, 2.5])
    writer.add_uint16("split.count", 1)
    writer.add_custom_alignment(64)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    save(writer)
    target = tmp_path / "target.gguf"
    done = convert(tmp_path / "more.gguf", target, FILE_TYPES["F16"], name="Other")
    assert done.taken == len(reader.tensors)
    before, after = (read_metadata(p, ModelError) for p in (tmp_path / "more.gguf", target))
    assert after["general.name"] == "Other"
    gone = {"split.count", "general.alignment"}
    assert before.keys() - gone == after.keys()
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"general.name"}


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.nan, "Q8_0", "blk.1.ffn_up.weight has values that are not finite"),
        (np.nan, "F32", "blk.1.ffn_up.weight has values that are not finite"),
        (np.inf, "F16", "not finite"),
        (1e5, "F16", r"up to 1e\+05 in magnitude, too large for F16; take type BF16"),
        (1e5, "Q4_K_S", "too large for Q4_K"),
        (3.4e38, "BF16", r"above 3.39e\+38, too large for BF16"),
        (np.inf, "BF16", "not finite"),
        (np.nan, "BF16", "not finite"),
        (1e30, "BF16", None),
    ],
)
def test_values_that_a_type_cannot_hold(
    value: float, kind: str, message: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for file in tiny_checkpoint("llama", **LARGE).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "model.gguf"
    if message is None:
        written(folder, path, kind)
        assert path.exists()
        return
    with pytest.raises(WeightError, match=message):
        written(folder, path, kind)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(("kind", "value"), [("F32", np.nan), ("F16", np.inf), ("Q8_0", np.inf)])
def test_what_is_taken_over_as_it_is_must_be_finite(
    kind: str, value: float, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    written(tiny_checkpoint("llama", **LARGE), path, kind)
    tensor = tensors(path)["blk.1.ffn_up.weight"]
    octets = bytearray(path.read_bytes())
    number = np.array([value], np.float32 if kind == "F32" else np.float16).tobytes()
    octets[tensor.data_offset : tensor.data_offset + len(number)] = number
    path.write_bytes(octets)
    with pytest.raises(WeightError, match=r"blk\.1\.ffn_up\.weight.*not finite"):
        written(path, tmp_path / "out.gguf", kind)


def save(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_files_of_unknown_architectures_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "t5.gguf", "t5")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    save(writer)
    with pytest.raises(ModelError, match="'t5', whose tensors Penstock does not know"):
        written(tmp_path / "t5.gguf", tmp_path / "out.gguf", "Q8_0")


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "i.gguf", "llama")
    writer.kv_data[0].clear()
    writer.add_type("imatrix")
    writer.add_tensor("blk.0.attn_q.weight.counts", np.ones((1, 1), np.float32))
    save(writer)
    with pytest.raises(ModelError, match="is an importance matrix and no model"):
        written(tmp_path / "i.gguf", tmp_path / "out.gguf", "Q8_0")
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    save(writer)
    with pytest.raises(ModelError, match="has no tensors, only a vocabulary, so it is no model"):
        written(tmp_path / "vocabulary.gguf", tmp_path / "out.gguf", "Q8_0")
