"""A checkpoint's weights under canonical names, checked against the model before any is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.config import DTypeOption, LoadFormat
from penstock.errors import WeightError
from penstock.interface.weights import WeightSource
from penstock.models.spec import DType, ModelSpec
from penstock.weights.convert import convert
from penstock.weights.dummy import DummyWeights
from penstock.weights.mapping import checkpoint_name, is_idle
from penstock.weights.safetensors import open_folder
from penstock.weights.tensor_file import Tensor, TensorFile

_QUANTIZED: Final = (".qweight", ".qzeros", ".scales", ".g_idx", "_scale", "_scale_inv", "_packed")
_COMPARE_BYTES: Final = 1 << 24  # at a time, so that comparing two matrices needs no copy of them


def open_weights(
    folder: Path,
    spec: ModelSpec,
    dtype: DTypeOption = "auto",
    load_format: LoadFormat = "auto",
    seed: int = 0,
) -> WeightSource:
    """The weights of ``spec`` in ``dtype`` (auto: as the checkpoint's configuration says).

    Every check that needs no weight data is done here: files, headers, names, shapes, dtypes.
    With ``load_format="dummy"`` the folder's weight files are not looked at, and ``seed`` decides
    the values. Raises WeightError.
    """
    wanted: DType = spec.dtype if dtype == "auto" else dtype
    if load_format == "dummy":
        return DummyWeights(spec, seed, wanted)
    return CheckpointWeights(folder, spec, wanted)


class StoredWeights:
    """A WeightSource over tensors of files, by canonical name.

    :meth:`get` converts one tensor at a time, so the memory in use beside the files' pages is one
    tensor's; without conversion it is a view.
    """

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self._tensors: dict[str, tuple[TensorFile, Tensor]] = {}

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def get(self, name: str) -> NDArray[Any]:
        """The weight in the dtype this source was opened with, read-only."""
        file, tensor = self._tensors[name]
        return convert(file.view(tensor.name), self._dtype, tensor.name)


class CheckpointWeights(StoredWeights):
    """The weights of a model, in the safetensors files of a folder."""

    def __init__(self, folder: Path, spec: ModelSpec, dtype: DType) -> None:
        super().__init__(dtype)
        found = open_folder(folder)
        for name, shape in spec.weight_shapes().items():
            stored = checkpoint_name(name)
            if stored not in found:
                raise _missing(folder, stored, found)
            file, tensor = self._tensors[name] = found.pop(stored)
            check_tensor(file, tensor, shape)
        if spec.tie_embeddings:
            self._check_tied_head(found)
        extra = sorted(name for name in found if not is_idle(name))
        if extra:
            raise unexpected(extra, found[extra[0]][0])

    def _check_tied_head(self, found: dict[str, tuple[TensorFile, Tensor]]) -> None:
        """Some files store a tied head again: it is the embedding, or config.json is wrong."""
        stored = checkpoint_name("head")
        if stored not in found:
            return
        head_file, head = found.pop(stored)
        file, embed = self._tensors["embed"]
        same = (head.dtype, head.shape) == (embed.dtype, embed.shape)
        if not same or not _equal_bytes(head_file.view(head.name), file.view(embed.name)):
            raise WeightError(
                f"{head_file.path} holds {stored!r} that differs from {embed.name!r}, but "
                "config.json says they are one; set tie_word_embeddings to false"
            )


def _equal_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    left, right = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    return all(
        np.array_equal(left[i : i + _COMPARE_BYTES], right[i : i + _COMPARE_BYTES])
        for i in range(0, left.size, _COMPARE_BYTES)
    )


def check_tensor(file: TensorFile, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise WeightError unless the tensor has ``shape`` and a type that models are served from."""
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.element is None:
        raise WeightError(
            f"{where} is stored as {tensor.dtype}; quantized checkpoints are not supported yet, "
            "use one in F32, BF16 or F16"
        )
    if tensor.shape != shape:
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for {list(shape)}; "
            "take both from one checkpoint"
        )


def _missing(folder: Path, name: str, found: dict[str, tuple[TensorFile, Tensor]]) -> WeightError:
    problem = f"{folder} lacks tensor {name!r}, which config.json asks for"
    if name == checkpoint_name("head"):
        return WeightError(
            f"{problem}; if the model shares it with the embedding, set tie_word_embeddings to true"
        )
    quantized = next((n for n in found if n.endswith(_QUANTIZED)), None)
    if quantized is not None:
        return WeightError(
            f"{problem}, but has {quantized!r}: quantized checkpoints are not supported yet"
        )
    return WeightError(f"{problem}; take configuration and weights from one checkpoint")


def unexpected(names: list[str], file: TensorFile) -> WeightError:
    """Return the error for tensors of ``file`` that the model has no use for."""
    shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    problem = f"{file.path}: {len(names)} tensor(s) have no place in the model: {shown}"
    if any(n.endswith(_QUANTIZED) for n in names):
        return WeightError(f"{problem}; quantized checkpoints are not supported yet")
    return WeightError(
        f"{problem}; config.json describes a model without them, take both from one checkpoint"
    )
