"""Reads matrices that AWQ quantized, with exactly the values that they stand for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.awq import Awq
from penstock.quant import GroupTensor
from penstock.weights.integer_codes import as_bytes, in_smaller_groups, require_usable, unpacked
from penstock.weights.tensor_file import Found

_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which of a word's codes, from the lowest bits on, each of its columns is."""
_MIDDLE: Final = np.uint8(8)


def read_awq(packed: Packed, found: Found) -> GroupTensor:
    """The matrix ``[n, k]``; scales are widened to float32.

    Raises WeightError where zero points are not those that the configuration promises, and where
    scales cannot be right.
    """
    form = packed.format
    assert isinstance(form, Awq)
    codes, zeros, scales = form.tensors(packed.name, packed.shape)
    file, tensor = found[codes.name]
    kept = _by_rows(file.integers(tensor.name))
    file, tensor = found[zeros.name]
    points = _by_rows(file.integers(tensor.name))
    if not form.zero_points and points.any():
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has zero points other than {_MIDDLE}, but "
            "config.json says that zero_point is false; set it to true in quantization_config"
        )
    file, tensor = found[scales.name]
    widened = np.ascontiguousarray(file.view(tensor.name).T.astype(np.float32))
    require_usable(widened, f"{file.path}: tensor {tensor.name!r}", kept, points, form.group_size)
    sizes = form.group_size, form.scheme.group_size
    return GroupTensor(
        form.scheme,
        kept,
        in_smaller_groups(widened, *sizes),
        in_smaller_groups(points, *sizes) if form.zero_points else None,
    )


def _by_rows(words: NDArray[Any]) -> NDArray[np.int8]:
    """Codes ``[n, count]`` of words ``[count, n / 8]``, less the middle code."""
    count, each = words.shape
    words_of = unpacked(as_bytes(words).reshape(count, -1), 4).reshape(count, each, 8)
    codes = words_of[:, :, _PLACES].reshape(count, -1)
    return np.ascontiguousarray((codes - _MIDDLE).T).view(np.int8)
