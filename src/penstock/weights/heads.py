"""The weights of heads that draft, and those that they take from the model they draft for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.config import LoadFormat
from penstock.errors import WeightError
from penstock.models.heads import EagleSpec, HeadsSpec
from penstock.models.spec import DType
from penstock.weights.checkpoint import StoredWeights, check_tensor, unexpected
from penstock.weights.head_files import (
    DRAFT_TO_TARGET,
    Found,
    is_idle,
    open_heads,
    stored_name,
)
from penstock.weights.mapping import checkpoint_name
from penstock.weights.safetensors import open_folder
from penstock.weights.tensor_file import Tensor, TensorFile

Int32s = NDArray[np.int32]

_SHARED: Final = ("embed", "head")
"""What a head may have in common with its target."""


class HeadWeights(StoredWeights):
    """The weights of a folder of heads and, where those lack the embedding or the output
    matrix, the checkpoint of the target.

    EAGLE 1 never has the output matrix, and EAGLE 3 not always the embedding. Every check that
    needs no weight data is done when it is made. Raises WeightError.
    """

    def __init__(
        self, folder: Path, spec: HeadsSpec, dtype: DType, target: Path | None = None
    ) -> None:
        super().__init__(dtype)
        found = open_heads(folder)
        for name, shape in spec.weight_shapes().items():
            stored = stored_name(spec, name)
            if stored in found:
                place = found.pop(stored)
            elif name in lacking(spec) and target is not None:
                place = _of_target(target, name)
            else:
                raise WeightError(
                    f"{folder} lacks tensor {stored!r}, which its config.json asks for; take "
                    "configuration and weights from one checkpoint"
                )
            self._tensors[name] = place
            check_tensor(*place, shape)
        extra = sorted(name for name in found if not is_idle(spec, name))
        if extra:
            raise unexpected(extra, found[extra[0]][0])


def lacking(spec: HeadsSpec) -> tuple[str, ...]:
    """Weights that a checkpoint may leave to the target's."""
    if not isinstance(spec, EagleSpec) or spec.hidden_size != spec.target_hidden_size:
        return ()
    return _SHARED if spec.num_outputs == spec.vocab_size else ("embed",)


def takes_from_target(folder: Path, spec: HeadsSpec) -> bool:
    """Whether the weights are not all in ``folder``. Raises WeightError."""
    names = lacking(spec)
    if not names:
        return False
    found = open_heads(folder)
    return any(stored_name(spec, name) not in found for name in names)


def _of_target(folder: Path, name: str) -> tuple[TensorFile, Tensor]:
    """A tied output matrix is the embedding; both are there only where they are equal."""
    found = open_folder(folder)
    for stored in dict.fromkeys((checkpoint_name(name), checkpoint_name("embed"))):
        if stored in found:
            return found[stored]
    raise WeightError(f"{folder} lacks tensor {checkpoint_name(name)!r}, which the heads share")


def read_token_map(
    folder: Path, spec: HeadsSpec, load_format: LoadFormat = "auto"
) -> Int32s | None:
    """Return the token id of each row of the output matrix, ``[num_outputs]``; None if row i is
    token i.

    The file holds what to add to a row's number (``d2t``). Raises WeightError for ids outside the
    vocabulary, or one that several rows have. Of dummy heads, row i is token i.
    """
    if not isinstance(spec, EagleSpec) or spec.kind != "eagle3":
        return None
    rows = np.arange(spec.num_outputs, dtype=np.int64)
    if load_format == "dummy":
        return None
    found: Found = open_heads(folder)
    if DRAFT_TO_TARGET not in found:
        if spec.num_outputs == spec.vocab_size:
            return None
        raise WeightError(
            f"{folder} lacks tensor 'd2t', which tells what tokens its {spec.num_outputs} outputs "
            "are; download the heads again"
        )
    file, tensor = found[DRAFT_TO_TARGET]
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.shape != rows.shape:
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for {list(rows.shape)}; "
            "take both from one checkpoint"
        )
    tokens = rows + file.integers(tensor.name).astype(np.int64)
    outside = np.flatnonzero((tokens < 0) | (tokens >= spec.vocab_size))
    if len(outside):
        raise WeightError(
            f"{where} maps row {outside[0]} to token {tokens[outside[0]]}, outside the vocabulary "
            f"of {spec.vocab_size}; take the heads from the original again"
        )
    if len(np.unique(tokens)) != len(tokens):
        raise WeightError(
            f"{where} maps several rows to one token; take the heads from the original again"
        )
    result: Int32s = tokens.astype(np.int32)
    return result
