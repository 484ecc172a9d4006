"""Reads safetensors files: a checked header, then views of the mapped file.

The format: eight bytes with the header's length, little-endian; the header, a JSON object from
tensor names to dtype, shape and the byte range within what follows; then the bytes, which the
ranges cover without gap or overlap. Everything the header says is checked against the file's size
before a byte of data is touched.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from penstock.errors import WeightError
from penstock.models.json_objects import parse_json_object, read_json_object
from penstock.models.spec import DType
from penstock.regular_file import open_regular
from penstock.weights.tensor_file import Tensor, TensorFile

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

_MAX_HEADER: Final = 100_000_000  # bytes; the limit of the format's own implementation
_MAX_TENSORS: Final = 1 << 18
"""Ten times those of the largest files. Each takes some ten microseconds and a kilobyte."""
_MAX_DIMENSION: Final = 2**48

_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


class SafetensorsFile(TensorFile):
    """One file: its tensors by name, and read-only views of them.

    Opening reads and checks the header alone.
    """

    def __init__(self, path: Path) -> None:
        try:
            with open(open_regular(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                super().__init__(path, size)
                prefix = file.read(8)
                length = int.from_bytes(prefix, "little")
                if prefix == b"version ":
                    self._fail("is a Git LFS pointer, not the weights; run `git lfs pull`")
                if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER):
                    self._fail(
                        f"is truncated or not a safetensors file: {size} bytes cannot hold the "
                        "header it announces; download it again"
                    )
                text = file.read(length)
        except OSError as e:
            raise WeightError(f"cannot read {path}: {e.strerror}") from e
        self.tensors = self._check(text, size)

    def _corrupt(self, problem: str) -> NoReturn:
        self._fail(f"has a corrupt header: {problem}; download it again")

    def _check(self, text: bytes, size: int) -> dict[str, Tensor]:
        count = text.count(b"{") - 1  # there is no other way to write an entry
        if count > _MAX_TENSORS:
            self._fail(
                f"has a header of about {count} tensors, and at most {_MAX_TENSORS} of one file "
                "are read; save it in several"
            )
        header = parse_json_object(text, f"{self.path}: the header", WeightError)
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            self._corrupt("__metadata__ is not an object")
        origin = 8 + len(text)
        tensors = {name: self._tensor(name, entry, origin) for name, entry in header.items()}
        position = origin
        for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.stop)):
            if tensor.start != position:
                what = "overlaps the one before" if tensor.start < position else "leaves a gap"
                self._corrupt(f"tensor {tensor.name!r} {what} at byte {tensor.start}")
            position = tensor.stop
            if position > size:
                self._fail(
                    f"is truncated: tensor {tensor.name!r} ends at byte {position}, the file at "
                    f"{size}; download it again"
                )
        if position != size:
            self._corrupt(f"{size - position} bytes after the last tensor belong to none")
        return tensors

    def _tensor(self, name: str, entry: object, origin: int) -> Tensor:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self._corrupt(f"tensor {name!r} needs exactly dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            self._corrupt(f"tensor {name!r} has unknown dtype {dtype!r:.40}")
        if not _sizes(shape):
            self._corrupt(f"tensor {name!r} has an impossible shape {shape!r:.60}")
        if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._corrupt(f"tensor {name!r} has impossible data_offsets {offsets!r:.60}")
        bits = math.prod(shape) * _BITS[dtype]
        if bits % 8 or offsets[1] - offsets[0] != bits // 8:
            self._corrupt(f"tensor {name!r} of shape {shape} does not fill {offsets!r}")
        return Tensor(name, dtype, tuple(shape), origin + offsets[0], origin + offsets[1])


def _sizes(values: object) -> bool:
    """Whether ``values`` is a short list of integers that can be dimensions or offsets."""
    return (
        isinstance(values, list)
        and len(values) <= 8
        and all(type(v) is int and 0 <= v <= _MAX_DIMENSION for v in values)
    )


def open_folder(folder: Path) -> dict[str, tuple[TensorFile, Tensor]]:
    """Every tensor of a checkpoint, in one file or in the shards that its index lists.

    Raises WeightError for a file that is missing, corrupt, or outside the folder, and for
    tensors that are missing from their shard or in two of them.
    """
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        single = SafetensorsFile(member(folder, SINGLE, None))
        return {name: (single, tensor) for name, tensor in single.tensors.items()}
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    weight_map = _read_index(folder)
    files = {
        shard: SafetensorsFile(member(folder, shard, INDEX))
        for shard in sorted(set(weight_map.values()))
    }
    found: dict[str, tuple[TensorFile, Tensor]] = {}
    for file in files.values():
        for name, tensor in file.tensors.items():
            if name in found:
                raise WeightError(
                    f"tensor {name!r} is both in {found[name][0].path.name} and in "
                    f"{file.path.name}; take the shards from one checkpoint"
                )
            found[name] = file, tensor
    for name, shard in weight_map.items():
        if name not in files[shard].tensors:
            raise WeightError(
                f"{folder / shard} lacks tensor {name!r}, which {INDEX} places there; "
                "take index and shards from one checkpoint"
            )
    return found


def stored_dtype(folder: Path) -> DType | None:
    """The dtype of the checkpoint's largest floating-point tensor; None without weights."""
    if not (folder / SINGLE).exists() and not (folder / INDEX).exists():
        return None
    tensors = [tensor for _, tensor in open_folder(folder).values() if tensor.element is not None]
    return max(tensors, key=lambda t: t.stop - t.start).element if tensors else None


def stored_names(folder: Path) -> frozenset[str]:
    """The names of the checkpoint's tensors; none without weights."""
    if (folder / SINGLE).exists():
        return frozenset(SafetensorsFile(member(folder, SINGLE, None)).tensors)
    return frozenset(_read_index(folder)) if (folder / INDEX).exists() else frozenset()


def _read_index(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    weight_map = read_json_object(path, WeightError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightError(f"{path} has no weight_map; take it from the original again")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard.endswith(".safetensors")
        if not plain or any(c in shard for c in "/\\\0"):
            raise WeightError(
                f"{path} places tensor {name!r} in {shard!r:.80}, which is not the name of a "
                ".safetensors file in the same folder"
            )
    return weight_map


def member(folder: Path, name: str, index: str | None) -> Path:
    """``folder / name``, a file or a link to one, as the hub's cache and its users keep them."""
    path = folder / name
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as e:
        source = f", which {index} lists" if index else ""
        link = f" is a link to {os.readlink(path)}, which" if path.is_symlink() else ","
        raise WeightError(f"{path}{source}{link} is missing; download the checkpoint again") from e
    if not target.is_file():
        raise WeightError(f"{path} is not a regular file")
    return path


def _no_weights(folder: Path) -> WeightError:
    here = f"{folder} has no {SINGLE} (nor {INDEX})"
    if not folder.is_dir():
        return WeightError(f"{folder} is not a folder")
    names = {p.name for p in folder.iterdir()}
    if any(n.endswith((".bin", ".pt", ".pth")) for n in names):
        return WeightError(
            f"{here}, only pickled weights, which can run code and are never loaded; convert "
            "them: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    if "adapter_model.safetensors" in names:
        return WeightError(f"{here}, only an adapter; merge it into its base model first")
    if any(n.startswith("consolidated") for n in names):
        return WeightError(
            f"{here}, only consolidated weights in the maker's own layout; "
            "use the checkpoint in Hugging Face layout"
        )
    if any(n.endswith(".gguf") for n in names):
        return WeightError(f"{here}, but GGUF files; give the path of the one that is meant")
    return WeightError(f"{here}; download the checkpoint again")
