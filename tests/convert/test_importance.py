"""Importance matrices: both forms of files, what they change, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray
from support.checkpoints import tiny_checkpoint

from penstock.convert.conversion import Converted, convert
from penstock.convert.importance_file import read_importance
from penstock.convert.types import FILE_TYPES
from penstock.errors import ConfigError, ModelError
from penstock.gguf.metadata import read_metadata

F32 = NDArray[np.float32]
LARGE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def means_of(model: Path) -> dict[str, F32]:
    """Mean squares for each matrix of a model's layers, ``[matrices, columns]``."""
    generator = np.random.default_rng(0)
    means = {}
    for name, tensor in tensors(model).items():
        shape = tensor.data.shape
        if name.startswith("blk.") and len(shape) > 1 and "gate_inp" not in name:
            of_stack = (shape[0] if len(shape) == 3 else 1, shape[-1])
            means[name] = np.exp(2 * generator.standard_normal(of_stack)).astype(np.float32)
    return means


def as_gguf(path: Path, means: Mapping[str, F32], counts: Mapping[str, F32] | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["texts/some.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, mean in means.items():
        count = np.full((len(mean), 1), 3584, np.float32)
        if counts is not None and name in counts:
            count = counts[name]
        sums = mean * count if len(count) == len(mean) else mean
        writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
        writer.add_tensor(f"{name}.counts", count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_dat(path: Path, means: Mapping[str, F32], end: bytes | None = None) -> Path:
    calls = 7
    data = struct.pack("<i", len(means))
    for name, mean in means.items():
        data += struct.pack("<i", len(name)) + name.encode()
        data += struct.pack("<ii", calls, mean.size) + (mean * calls).astype("<f4").tobytes()
    text = b"texts/some.txt"
    path.write_bytes(data + (struct.pack("<ii", calls, len(text)) + text if end is None else end))
    return path


def written(model: Path, target: Path, kind: str, imatrix: Path | None = None) -> Converted:
    importance = None if imatrix is None else read_importance(imatrix)
    return convert(model, target, FILE_TYPES[kind], importance=importance, threads=2)


def plain_of(tmp_path: Path, family: str = "llama", **options: Any) -> Path:
    path = tmp_path / "plain.gguf"
    written(tiny_checkpoint(family, **{**LARGE, **options}), path, "F32")
    return path


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q4_0", "Q5_0", "Q6_K"])
def test_columns_that_count_more_have_less_error(kind: str, tmp_path: Path) -> None:
    plain = plain_of(tmp_path)
    means = means_of(plain)
    imatrix = as_gguf(tmp_path / "i.gguf", means)
    written(plain, tmp_path / "without.gguf", kind)
    written(plain, tmp_path / "with.gguf", kind, imatrix)
    exact = tensors(plain)
    without, found = tensors(tmp_path / "without.gguf"), tensors(tmp_path / "with.gguf")
    for name, mean in means.items():
        errors = [
            np.sum(
                mean * (dequantize(each[name].data, each[name].tensor_type) - exact[name].data) ** 2
            )
            for each in (without, found)
        ]
        assert errors[1] < 0.97 * errors[0], name
    assert np.array_equal(found["output.weight"].data, without["output.weight"].data)
    metadata = read_metadata(tmp_path / "with.gguf", ModelError)
    said = {key: value for key, value in metadata.items() if key.startswith("quantize.")}
    assert said == {
        "quantize.imatrix.file": "i.gguf",
        "quantize.imatrix.dataset": "texts/some.txt",
        "quantize.imatrix.entries_count": len(means),
        "quantize.imatrix.chunks_count": 7,
    }


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    plain = plain_of(tmp_path, "qwen3_moe", norm_topk_prob=True, moe_intermediate_size=256)
    means = means_of(plain)
    assert any(len(mean) > 1 for mean in means.values())
    first, second = as_gguf(tmp_path / "i.gguf", means), as_dat(tmp_path / "i.dat", means)
    written(plain, tmp_path / "1.gguf", "Q4_K_M", first)
    written(plain, tmp_path / "2.gguf", "Q4_K_M", second)
    one, other = tensors(tmp_path / "1.gguf"), tensors(tmp_path / "2.gguf")
    same = [np.mean(one[name].data == other[name].data) for name in one]
    assert min(same) > 0.99  # products with the number of calls are rounded
    older = as_dat(tmp_path / "older.dat", means, end=b"")
    assert read_importance(older).datasets == ()
    assert read_importance(second).datasets == ("texts/some.txt",)
    assert read_importance(second).chunks == read_importance(first).chunks == 7


def test_each_expert_has_its_own_columns(tmp_path: Path) -> None:
    """Also one that no text has run: its columns count alike."""
    plain = plain_of(tmp_path, "qwen3_moe", norm_topk_prob=True, moe_intermediate_size=256)
    means = means_of(plain)
    name = "blk.1.ffn_up_exps.weight"
    counts = np.full((len(means[name]), 1), 100, np.float32)
    counts[2] = 0
    imatrix = as_gguf(tmp_path / "i.gguf", means, {name: counts})
    written(plain, tmp_path / "with.gguf", "Q4_K_S", imatrix)
    means[name][2] = 1
    written(plain, tmp_path / "other.gguf", "Q4_K_S", as_gguf(tmp_path / "j.gguf", means))
    found = tensors(tmp_path / "with.gguf")[name].data
    assert np.mean(found == tensors(tmp_path / "other.gguf")[name].data) > 0.99
    exact = tensors(plain)[name].data
    error = (dequantize(found, gguf.GGMLQuantizationType.Q4_K) - exact) ** 2
    own = [np.sum(means[name][i] * error[i]) for i in range(len(exact))]
    others = [np.sum(means[name][i - 1] * error[i]) for i in range(len(exact))]
    assert sum(own) < 0.9 * sum(others)


def without(name: str) -> Callable[[dict[str, F32]], None]:
    def edit(means: dict[str, F32]) -> None:
        del means[name]

    return edit


def replaced(name: str, value: F32) -> Callable[[dict[str, F32]], None]:
    def edit(means: dict[str, F32]) -> None:
        means[name] = value

    return edit


UP = "blk.1.ffn_up.weight"


@pytest.mark.parametrize("form", [as_gguf, as_dat])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without(UP), f"has no entry for {UP}, which is to be in Q4_K: it is of another model"),
        (replaced(UP, np.ones((1, 512), np.float32)), f"has 512 values for {UP}, .* 256 columns"),
        (replaced("blk.2.ffn_up.weight", np.ones((1, 256), np.float32)), "which the model has not"),
        (replaced(UP, np.full((1, 256), np.nan, np.float32)), f"values for {UP} .* not finite"),
        (replaced(UP, np.full((1, 256), -1, np.float32)), f"values below 0 for {UP}"),
    ],
)
def test_a_matrix_of_another_model(
    form: Callable[[Path, Mapping[str, F32]], Path],
    edit: Callable[[dict[str, F32]], None],
    message: str,
    tmp_path: Path,
) -> None:
    plain = plain_of(tmp_path)
    means = means_of(plain)
    edit(means)
    imatrix = form(tmp_path / "i.file", means)
    with pytest.raises(ConfigError, match=message):
        written(plain, tmp_path / "q.gguf", "Q4_K_S", imatrix)
    assert not (tmp_path / "q.gguf").exists()


def test_types_that_have_no_use_for_it(tmp_path: Path) -> None:
    plain = plain_of(tmp_path)
    imatrix = as_gguf(tmp_path / "i.gguf", means_of(plain))
    for kind in ("F16", "Q8_0"):
        with pytest.raises(ConfigError, match=f"files of type {kind} have no use"):
            written(plain, tmp_path / "q.gguf", kind, imatrix)


def test_columns_that_nothing_reads(tmp_path: Path) -> None:
    """Means of 0 alone, and of some columns: values stay near what they were."""
    plain = plain_of(tmp_path)
    means = means_of(plain)
    means[UP][:] = 0
    means["blk.0.ffn_up.weight"][:, ::3] = 0
    written(plain, tmp_path / "q.gguf", "Q4_K_S", as_gguf(tmp_path / "i.gguf", means))
    for name in (UP, "blk.0.ffn_up.weight"):
        tensor, exact = tensors(tmp_path / "q.gguf")[name], tensors(plain)[name].data
        again = dequantize(tensor.data, tensor.tensor_type)
        assert np.abs(again - exact).max() < np.abs(exact).max()
        assert np.sum((again - exact) ** 2) < 0.02 * np.sum(exact**2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: b"\0\0\0\0", "neither a GGUF file nor an importance matrix"),
        (lambda data: data[:40], "ends within"),
        (lambda data: data[:-3], "ends within a name"),
        (lambda data: data + b"more", "goes on for 4 bytes"),
        (lambda data: data[:4] + struct.pack("<i", -5) + data[8:], "a name of -5 bytes"),
        (lambda data: data[:8] + b"\xff" + data[9:], "no UTF-8"),
    ],
)
def test_older_files_that_are_corrupt(
    change: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = as_dat(tmp_path / "i.dat", {"blk.0.attn_q.weight": np.ones((1, 8), np.float32)})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=message):
        read_importance(path)


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    path = as_dat(tmp_path / "i.dat", {"blk.0.attn_q.weight": np.ones((1, 8), np.float32)})
    data = path.read_bytes()
    whole = len(data) - 8 - len(b"texts/some.txt")
    for end in range(len(data)):
        path.write_bytes(data[:end])
        if end in (whole, whole + 4):  # what stands behind the entries may be missing
            assert read_importance(path).means.keys() == {"blk.0.attn_q.weight"}
            continue
        with pytest.raises(ConfigError):
            read_importance(path)


def test_newer_files_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of type 'model', and not an importance matrix"):
        read_importance(plain_of(tmp_path))
    ones = np.ones((2, 8), np.float32)
    name = "blk.0.attn_q.weight"
    counts = np.ones((3, 1), np.float32)
    with pytest.raises(ConfigError, match=f"3 counts for {name}, and 16 sums"):
        read_importance(as_gguf(tmp_path / "i.gguf", {name: ones}, {name: counts}))
    writer = gguf.GGUFWriter(tmp_path / "j.gguf", "llama")
    writer.add_type("imatrix")
    writer.add_tensor(f"{name}.in_sum2", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=rf"has {name}.in_sum2, and no {name}.counts"):
        read_importance(tmp_path / "j.gguf")
