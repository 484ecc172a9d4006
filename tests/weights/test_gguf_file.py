"""GGUF files as checkpoints: views, parts, types that others decode, and damage of every kind."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.gguf_models import floats, mixed, write_gguf

import penstock.weights.gguf_file as module
from penstock.errors import ModelError, PenstockError, WeightError
from penstock.gguf.names import PartName
from penstock.gguf.tensors import read_header
from penstock.plan.lower import lower
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.gguf_choice import in_folder, named
from penstock.weights.gguf_file import GgufFile, open_gguf
from penstock.weights.model_folder import load_model_spec


def some_tensors(path: Path, *, alignment: int = 32, **more: int) -> Path:
    """A file of a vector, a matrix in blocks and a stack, and ``split.*`` keys."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, value in more.items():
        writer.add_uint16(key.replace("__", "."), value)
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    blocks = gguf.quants.quantize(rng.normal(size=(3, 64)).astype(np.float32), Type.Q8_0)
    writer.add_tensor("matrix", blocks, raw_dtype=Type.Q8_0)
    stack = gguf.quants.quantize(rng.normal(size=(2, 3, 32)).astype(np.float32), Type.Q4_0)
    writer.add_tensor("stack", stack, raw_dtype=Type.Q4_0)
    for name, kind in (("packed_vector", Type.Q8_0), ("decoded_vector", Type.TQ2_0)):
        packed = gguf.quants.quantize(rng.normal(size=512).astype(np.float32), kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors(alignment: int, tmp_path: Path) -> None:
    path = some_tensors(tmp_path / "a.gguf", alignment=alignment)
    found = open_gguf(path).tensors
    assert {name: tensor.shape for name, (_, tensor) in found.items()} == {
        "vector": (5,),
        "matrix": (3, 64),
        "stack": (2, 3, 32),
        "packed_vector": (512,),
        "decoded_vector": (512,),
    }
    file, _ = found["matrix"]
    assert isinstance(file, GgufFile)
    assert file.view("vector").tolist() == [0, 1, 2, 3, 4]
    expected = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name in ("matrix", "stack"):
        values = gguf.quants.dequantize(expected[name].data, expected[name].tensor_type)
        assert np.array_equal(file.view(name), values)
        assert np.array_equal(file.slices(name, [(1, 2), (0, 1)]), values[[1, 0]])
        assert np.array_equal(file.blocks(name).dequantize(), values.reshape(-1, values.shape[-1]))
    assert not file.blocks("matrix").blocks.flags.owndata
    for name in ("packed_vector", "decoded_vector"):
        (values,) = gguf.quants.dequantize(expected[name].data, expected[name].tensor_type)[None]
        assert np.array_equal(file.view(name), values)
        runs = [(40, 300), (5, 9)]
        sliced = np.concatenate([values[40:300], values[5:9]])
        assert np.array_equal(file.slices(name, runs), sliced)


def pages_of_files() -> int:
    """Bytes of mapped files that count as this process's memory."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssFile"].split()[0]) * 1024


def test_the_pages_of_what_has_been_read_are_given_back(tmp_path: Path) -> None:
    writer, size = gguf.GGUFWriter(str(path := tmp_path / "model.gguf"), "llama"), 1 << 23
    writer.add_tensor("a", np.ones((2048, 1024), np.float32))
    writer.add_tensor("b", np.zeros((8192, 1088), np.uint8), raw_dtype=Type.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(read_header(path, WeightError))
    before, rows = pages_of_files(), ((0, 4096),)
    floats, blocks = file.view("a"), file.blocks("b", rows)
    some = floats[1:][:3, ::2]  # a view of a view
    assert floats.sum() == size / 4
    assert not blocks.blocks.any()
    assert pages_of_files() - before > size
    del floats, blocks
    assert pages_of_files() - before > size / 2  # of what is still looked at
    assert (some == 1).all()
    del some
    assert pages_of_files() - before < size / 4
    assert file.view("a").sum() == size / 4


def split(tmp_path: Path, folder: Path, count: int = 3) -> list[Path]:
    """A model in parts, as llama.cpp's tool cuts it: metadata in the first alone."""
    whole = gguf.GGUFReader(write_gguf(folder, tmp_path / "whole.gguf", mixed))
    paths = [tmp_path / str(PartName("model", i + 1, count)) for i in range(count)]
    for i, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        for field in whole.fields.values() if i == 0 else ():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                writer.add_key_value(field.name, field.contents(), field.types[0])
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(whole.tensors))
        for tensor in whole.tensors[i::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_parts(tmp_path: Path) -> None:
    paths = split(tmp_path, tiny_checkpoint("llama", intermediate_size=96))
    whole = load_model_spec(tmp_path / "whole.gguf")
    for path in paths:
        spec = load_model_spec(path)
        assert spec.layers == whole.layers
        assert open_gguf(path).path == paths[0]
    (tmp_path / "whole.gguf").unlink()
    assert in_folder(tmp_path) == paths[0]
    paths[1].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(WeightError, match=r"model-00002-of-00003\.gguf is missing"):
        open_gguf(paths[2])
    with pytest.raises(WeightError, match="one of 3 parts of a model, which its name does not"):
        open_gguf(tmp_path / "elsewhere.gguf")
    paths[2].rename(paths[1])
    (tmp_path / "elsewhere.gguf").rename(paths[2])
    with pytest.raises(WeightError, match="says that it is part 3 of 3, and its name"):
        open_gguf(paths[0])


@pytest.mark.parametrize("name", ["matrix", "stack", "packed_vector", "decoded_vector"])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("scale", [b"\x00\x7c", b"\x00\xfe"])
def test_scales_that_are_not_finite(name: str, scale: bytes, tmp_path: Path) -> None:
    path = some_tensors(tmp_path / "a.gguf")
    file, tensor = open_gguf(path).tensors[name]
    row = {"matrix": 2, "stack": 4}.get(name, 0)
    rows = {"matrix": 3, "stack": 6}.get(name, 1)
    at = tensor.start + row * ((tensor.stop - tensor.start) // rows)
    damaged = bytearray(path.read_bytes())
    at += 64 if name == "decoded_vector" else 0
    damaged[at : at + 2] = scale
    path.write_bytes(damaged)
    file, _ = open_gguf(path).tensors[name]
    assert isinstance(file, GgufFile)
    message = rf"a\.gguf has in row {row} of tensor '{name}' .* not finite.*download the file again"
    with pytest.raises(WeightError, match=message):
        file.view(name)
    if name in ("matrix", "stack"):
        for runs in (None, ((row, row + 1),)):
            with pytest.raises(WeightError, match=message):
                file.blocks(name, runs)
        assert file.blocks(name, ((0, row),)).shape[0] == row


def ternary(name: str, shape: tuple[int, ...]) -> Type:
    return Type.TQ2_0 if shape[-1] % 256 == 0 and "ffn" in name else floats(name, shape)


def test_types_that_the_package_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_checkpoint("llama", hidden_size=256)
    path = write_gguf(folder, tmp_path / "model.gguf", ternary)
    spec = load_model_spec(path)
    assert any("TQ2_0" in note for note in spec.notes)
    weights = CheckpointWeights(path, spec, lower(spec, "float32").weights, "float32")
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(np.asarray(weights.get("layers.1.up")), expected)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(WeightError, match=r"TQ2_0, which .* pip install 'penstock\[gguf\]'"):
        load_model_spec(path)


def directory(path: Path, name: bytes) -> int:
    """Where the entry of a tensor begins."""
    return path.read_bytes().index(len(name).to_bytes(8, "little") + name)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"\xff" * 4, "dimensions"),
        (4, (1 << 60).to_bytes(8, "little"), "truncated|corrupt"),
        (4, bytes(8), "no values"),
        (4, (33).to_bytes(8, "little"), "whole number"),
        (20, (99).to_bytes(4, "little"), "type 99"),
        (20, (4).to_bytes(4, "little"), "type 4"),
        (24, (33).to_bytes(8, "little"), "multiple of"),
        (24, (1 << 62).to_bytes(8, "little"), "truncated"),
        (24, bytes(8), "overlap"),
    ],
)
def test_entries_that_cannot_be(at: int, value: bytes, message: str, tmp_path: Path) -> None:
    path = some_tensors(tmp_path / "a.gguf")
    data = bytearray(path.read_bytes())
    start = directory(path, b"matrix") + 8 + len(b"matrix") + at
    data[start : start + len(value)] = value
    path.write_bytes(data)
    with pytest.raises(WeightError, match=message) as refused:
        open_gguf(path)
    assert str(path) in str(refused.value)


def test_a_pointer_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(WeightError, match=r"Git LFS pointer.*git lfs pull"):
        open_gguf(path)


def test_a_name_twice_and_an_alignment_of_nothing(tmp_path: Path) -> None:
    path = some_tensors(tmp_path / "a.gguf")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"matrix", b"vector"))
    with pytest.raises(WeightError, match="'vector' occurs twice"):
        open_gguf(path)
    key = b"general.alignment"
    where = data.index(key) + len(key) + 4
    for alignment in (0, 3, 1 << 31):
        path.write_bytes(data[:where] + alignment.to_bytes(4, "little") + data[where + 4 :])
        with pytest.raises(WeightError, match=r"general\.alignment"):
            open_gguf(path)
    path.write_bytes(data[:-40])
    with pytest.raises(WeightError, match="truncated"):
        open_gguf(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tiny_checkpoint("llama", num_hidden_layers=1, vocab_size=259, intermediate_size=32)
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return write_gguf(folder, path, mixed).read_bytes()


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_gives_one_clear_error_or_none(
    data: st.DataObject, small: bytes, tmp_path: Path
) -> None:
    """Bytes of the head are changed, and the file is cut: nothing but our errors comes out."""
    damaged = bytearray(small)
    head = small.index(b"blk.0.attn_norm") + 2000
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, head))
        width = data.draw(st.sampled_from([1, 1, 4, 8]))
        damaged[at : at + width] = data.draw(st.binary(min_size=width, max_size=width))
    end = data.draw(
        st.sampled_from([len(small), len(small), data.draw(st.integers(0, len(small)))])
    )
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged[:end])
    began = time.process_time()
    with contextlib.suppress(PenstockError):
        spec = load_model_spec(path)
        if len(spec.layers) < 64:
            weights = CheckpointWeights(path, spec, lower(spec, "float32").weights, "float32")
            for name in weights.names():
                weights.get(name)
    assert time.process_time() - began < 60


FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model-q8_0.gguf",
    "mmproj-model-Q8_0.gguf",
    "big/Q6_K/model-Q6_K-00001-of-00002.gguf",
    "big/Q6_K/model-Q6_K-00002-of-00002.gguf",
    "IQ3_M/model.gguf",
]


def test_a_file_by_its_quantization() -> None:
    assert named(FILES, "Q4_K_M", "a/b") == ["model-Q4_K_M.gguf"]
    assert named(FILES, "q4_k_m", "a/b") == ["model-Q4_K_M.gguf"]
    assert named(FILES, "Q8_0", "a/b") == ["model-q8_0.gguf"]
    assert named(FILES, "Q6_K", "a/b") == FILES[5:7]
    assert named(FILES, "IQ3_M", "a/b") == ["IQ3_M/model.gguf"]
    with pytest.raises(ModelError, match=r"a/b has no GGUF file in Q5_K, but .*model-Q4_K_M"):
        named(FILES, "Q5_K", "a/b")
    with pytest.raises(ModelError, match="no GGUF file in 4_K_M"):
        named(FILES, "4_K_M", "a/b")
    with pytest.raises(ModelError, match="2 GGUF files in Q8_0"):
        named([*FILES, "other.Q8_0.gguf"], "Q8_0", "a/b")
    with pytest.raises(ModelError, match="no GGUF files; leave out"):
        named(["model.safetensors"], "Q8_0", "a/b")


def test_the_file_of_a_folder(tmp_path: Path) -> None:
    assert in_folder(tmp_path) is None
    (tmp_path / "a.gguf").touch()
    (tmp_path / "mmproj-a.gguf").touch()
    assert in_folder(tmp_path) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"2 GGUF files \(a.gguf, b.gguf\)"):
        in_folder(tmp_path)
    (tmp_path / "a.gguf").unlink()
    (tmp_path / "b.gguf").unlink()
    with pytest.raises(ModelError, match=r"no model: mmproj-a.gguf goes beside one"):
        in_folder(tmp_path)
    (tmp_path / "mmproj-a.gguf").rename(tmp_path / "a-00002-of-00002.gguf")
    with pytest.raises(ModelError, match=r"a-00002-of-00002.gguf is a later part"):
        in_folder(tmp_path)
    (tmp_path / "config.json").touch()
    assert in_folder(tmp_path) is None
