"""The safetensors reader: values, every kind of damage, and fuzzing. Damage only ever raises."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from penstock.errors import WeightError
from penstock.weights.safetensors import (
    INDEX,
    SINGLE,
    SafetensorsFile,
    open_folder,
    stored_dtype,
)

ARRAYS: dict[str, Any] = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.linspace(-3, 3, 10).astype(ml_dtypes.bfloat16),
    "c": np.linspace(-3, 3, 6).astype(np.float16).reshape(2, 3),
    "empty": np.zeros((0, 5), np.float32),
}


def pack(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(folder: Path, content: bytes, name: str = SINGLE) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_values_are_views(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file(ARRAYS, path, metadata={"format": "pt"})
    file = SafetensorsFile(path)
    assert set(file.tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        view = file.view(name)
        assert view.dtype == array.dtype
        assert not view.flags.writeable or view.size == 0
        assert view.size == 0 or not view.flags.owndata
        np.testing.assert_array_equal(view, array)


def test_views_outlive_the_file(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file(ARRAYS, path)
    view = SafetensorsFile(path).view("a")
    np.testing.assert_array_equal(view, ARRAYS["a"])


def test_unaligned_data_is_copied(tmp_path: Path) -> None:
    values = np.array([1.5, -2.5], np.float32)
    header = json.dumps({"x": entry()}).encode()
    header += b" " * (1 + -(8 + len(header)) % 4)
    assert (8 + len(header)) % 4 == 1
    view = SafetensorsFile(write(tmp_path, pack(header, values.tobytes()))).view("x")
    assert view.flags.aligned
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated or not a safetensors file"),
        (b"1234567", "truncated or not"),
        (pack({}, length=1000), "truncated or not"),
        (pack({}, length=2**63), "truncated or not"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (pack(b"{"), "not valid JSON"),
        (pack(b"\xff\xfe\x00"), "not valid JSON"),
        (pack(b"[" * 200_000), "not valid JSON"),
        (pack(b'{"x": ' + b"9" * 5000 + b"}"), "not valid JSON"),
        (pack([]), "must hold a JSON object"),
        (pack(b'{"x": {}, "x": {}}'), "repeats a key"),
        (pack({"__metadata__": 1}), "__metadata__"),
        (pack({"x": 1}), "needs exactly"),
        (pack({"x": {"dtype": "F32", "shape": [2]}}), "needs exactly"),
        (pack({"x": {**entry(), "more": 1}}, bytes(8)), "needs exactly"),
        (pack({"x": entry("F33")}, bytes(8)), "unknown dtype 'F33'"),
        (pack({"x": entry(shape=[-2])}, bytes(8)), "impossible shape"),
        (pack({"x": entry(shape=[2.0])}, bytes(8)), "impossible shape"),
        (pack({"x": entry(shape=[True, 2])}, bytes(8)), "impossible shape"),
        (pack({"x": entry(shape=[1] * 50)}, bytes(8)), "impossible shape"),
        (pack({"x": entry(shape=[2**60, 2**60])}, bytes(8)), "impossible shape"),
        (pack({"x": entry(offsets=[8, 0])}, bytes(8)), "impossible data_offsets"),
        (pack({"x": entry(offsets=[0])}, bytes(8)), "impossible data_offsets"),
        (pack({"x": entry(offsets=[0, 4])}, bytes(8)), "does not fill"),
        (pack({"x": entry(shape=[3])}, bytes(8)), "does not fill"),
        (pack({"x": entry()}, bytes(7)), "is truncated: tensor 'x' ends"),
        (pack({"x": entry()}, bytes(9)), "1 bytes after the last tensor"),
        (pack({"x": entry(offsets=[4, 12])}, bytes(12)), "leaves a gap"),
        (pack({"x": entry(), "y": entry(offsets=[4, 12])}, bytes(12)), "overlaps"),
    ],
    ids=itertools.count(),
)
def test_damage(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(WeightError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file(ARRAYS, path)
    content = path.read_bytes()
    for length in range(len(content)):
        with pytest.raises(WeightError):
            SafetensorsFile(write(tmp_path, content[:length], "cut.safetensors"))


def test_a_file_that_shrinks_after_its_header_was_read(tmp_path: Path) -> None:
    path = tmp_path / SINGLE
    save_file(ARRAYS, path)
    file = SafetensorsFile(path)
    write(tmp_path, path.read_bytes()[:-1])
    with pytest.raises(WeightError, match="changed while"):
        file.view("a")


FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_all(path: Path) -> None:
    """Read every tensor; WeightError is the one way to fail."""
    try:
        file = SafetensorsFile(path)
    except WeightError:
        return
    for name, tensor in file.tensors.items():
        if tensor.element is not None:
            assert file.view(name).shape == tensor.shape


@FUZZ
@given(st.binary(max_size=64))
def test_fuzz_bytes(tmp_path: Path, content: bytes) -> None:
    read_all(write(tmp_path, content))
    read_all(write(tmp_path, pack(content)))


@FUZZ
@given(st.data())
def test_fuzz_flipped_bytes(tmp_path: Path, data: st.DataObject) -> None:
    save_file(ARRAYS, tmp_path / "whole.safetensors")
    content = bytearray((tmp_path / "whole.safetensors").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_all(write(tmp_path, bytes(content)))


NUMBERS = st.integers(-2, 12) | st.integers() | st.floats() | st.booleans() | st.none()
LISTS = st.lists(NUMBERS, max_size=4)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "F16", "I8", "F4", "?"]) | NUMBERS,
        "shape": LISTS | NUMBERS,
        "data_offsets": st.tuples(NUMBERS, NUMBERS).map(list) | LISTS,
    }
)


@FUZZ
@given(
    st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), ENTRIES | NUMBERS, max_size=3),
    st.binary(max_size=24),
)
def test_fuzz_headers(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    read_all(write(tmp_path, pack(header, data)))


def sharded(folder: Path) -> Path:
    """Two shards, ``a`` in one and ``b`` in the other, and their index."""
    folder.mkdir(exist_ok=True)
    for shard, name in (("one", "a"), ("two", "b")):
        save_file({name: ARRAYS[name]}, folder / f"{shard}.safetensors")
    reindex(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    return folder


def reindex(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("spelled", ["data_offsets", "d\\u0061ta_offsets"])
def test_more_tensors_than_any_model_has(tmp_path: Path, spelled: str) -> None:
    entry = '"%d":{"dtype":"F32","shape":[0],"' + spelled + '":[0,0]}'
    header = "{" + ",".join(entry % i for i in range(300_000)) + "}"
    path = tmp_path / "many.safetensors"
    path.write_bytes(pack(header.encode()))
    with pytest.raises(WeightError, match="about 300000 tensors"):
        SafetensorsFile(path)


def test_shards(tmp_path: Path) -> None:
    found = open_folder(sharded(tmp_path))
    assert set(found) == {"a", "b"}
    for name, (file, tensor) in found.items():
        np.testing.assert_array_equal(file.view(tensor.name), ARRAYS[name])
    assert stored_dtype(tmp_path) == "float32"


@pytest.mark.parametrize(
    "shard",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "/tmp/x.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "x\0.safetensors",
        "one.bin",
        "",
        ".",
        7,
        None,
        ["one.safetensors"],
    ],
)
def test_index_that_points_elsewhere(tmp_path: Path, shard: object) -> None:
    folder = sharded(tmp_path / "model")
    save_file({"a": ARRAYS["a"]}, tmp_path / "outside.safetensors")
    reindex(folder, {"a": shard, "b": "two.safetensors"})
    with pytest.raises(WeightError, match=r"not the name of a \.safetensors file"):
        open_folder(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", 1])
def test_index_without_map(tmp_path: Path, weight_map: object) -> None:
    reindex(sharded(tmp_path), weight_map)
    with pytest.raises(WeightError, match="has no weight_map"):
        open_folder(tmp_path)


def test_index_that_is_not_json(tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX).write_bytes(b"\x80{")
    with pytest.raises(WeightError, match="not valid JSON"):
        open_folder(tmp_path)


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / "two.safetensors").unlink()
    with pytest.raises(WeightError, match=r"two\.safetensors, which .* is missing"):
        open_folder(tmp_path)


def test_tensor_missing_from_its_shard(tmp_path: Path) -> None:
    reindex(sharded(tmp_path), {"a": "one.safetensors", "b": "one.safetensors"})
    with pytest.raises(WeightError, match=r"one\.safetensors lacks tensor 'b'"):
        open_folder(tmp_path)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    folder = sharded(tmp_path)
    save_file({"a": ARRAYS["a"], "b": ARRAYS["b"]}, folder / "two.safetensors")
    with pytest.raises(WeightError, match="'a' is both in"):
        open_folder(folder)


def link_outside(folder: Path, name: str) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    shutil.move(folder / name, outside / name)
    os.symlink(outside / name, folder / name)


def link_inside(folder: Path, name: str) -> None:
    shutil.move(folder / name, folder / "real.safetensors")
    os.symlink("real.safetensors", folder / name)


def link_loop(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.symlink(name, folder / name)


def make_folder(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (link_outside, None),
        (link_inside, None),
        (link_loop, "is missing"),
        (make_folder, "not a regular file"),
    ],
)
def test_links(tmp_path: Path, change: Callable[[Path, str], None], message: str | None) -> None:
    folder = sharded(tmp_path / "model")
    change(folder, "one.safetensors")
    if message is None:
        np.testing.assert_array_equal(open_folder(folder)["a"][0].view("a"), ARRAYS["a"])
    else:
        with pytest.raises(WeightError, match=message):
            open_folder(folder)


@pytest.mark.parametrize("single", [True, False])
def test_hub_cache_layout(tmp_path: Path, single: bool) -> None:
    """``snapshots/<revision>/name`` links to ``blobs/<hash>``."""
    snapshot = tmp_path / "models--x--y" / "snapshots" / "abc"
    blobs = tmp_path / "models--x--y" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    name = SINGLE if single else "one.safetensors"
    save_file({"a": ARRAYS["a"]}, blobs / "123")
    os.symlink("../../blobs/123", snapshot / name)
    if not single:
        reindex(snapshot, {"a": name})
    np.testing.assert_array_equal(open_folder(snapshot)["a"][0].view("a"), ARRAYS["a"])
    blobs.rename(tmp_path / "models--x--y" / "other")
    with pytest.raises(WeightError, match=r"is a link to \.\./\.\./blobs/123, which is missing"):
        open_folder(snapshot)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "download the checkpoint again"),
        (["pytorch_model.bin"], "save_pretrained"),
        (["pytorch_model-00001-of-00002.bin", "config.json"], "pickled weights"),
        (["consolidated.00.pth"], "pickled weights"),
        (["adapter_model.safetensors"], "adapter"),
        (["consolidated.safetensors"], "own layout"),
        (["model.gguf"], "GGUF"),
    ],
)
def test_folder_without_weights(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(WeightError, match=message):
        open_folder(tmp_path)
    assert stored_dtype(tmp_path) is None


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="is not a folder"):
        open_folder(tmp_path / "none")
