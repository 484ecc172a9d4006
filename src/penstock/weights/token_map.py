"""Which tokens of the target's vocabulary heads draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Stored
from penstock.weights.published import open_draft_heads

Int32s = NDArray[np.int32]


def read_token_map(folder: Path, offsets: Stored, vocab_size: int) -> Int32s:
    """Return the token id of each row of the output matrix, ``[num_outputs]``.

    ``offsets``: the tensor of the heads in ``folder`` that holds what to add to a row's number.
    Raises WeightError where it is missing, and for ids outside the vocabulary, or one that several
    rows have.
    """
    found = open_draft_heads(folder)
    rows = np.arange(*offsets.shape, dtype=np.int64)
    if offsets.name not in found:
        raise WeightError(
            f"{folder} lacks tensor {offsets.name!r}, which tells what tokens its {len(rows)} "
            "outputs are; download the heads again"
        )
    file, tensor = found[offsets.name]
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.shape != offsets.shape:
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for "
            f"{list(offsets.shape)}; take both from one checkpoint"
        )
    tokens = rows + file.integers(tensor.name).astype(np.int64)
    outside = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(outside):
        raise WeightError(
            f"{where} maps row {outside[0]} to token {tokens[outside[0]]}, outside the vocabulary "
            f"of {vocab_size}; take the heads from the original again"
        )
    if len(np.unique(tokens)) != len(tokens):
        raise WeightError(
            f"{where} maps several rows to one token; take the heads from the original again"
        )
    result: Int32s = tokens.astype(np.int32)
    return result
