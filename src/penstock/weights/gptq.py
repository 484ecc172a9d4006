"""Reads matrices that GPTQ quantized, with exactly the values that they stand for."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.gptq import Gptq, group_index
from penstock.quant import GroupTensor
from penstock.weights.integer_codes import (
    as_bytes,
    column_order,
    in_smaller_groups,
    require_usable,
    unpacked,
)
from penstock.weights.tensor_file import Found

_MOST_ZERO: Final = {2: 8, 3: 8, 4: 8, 8: 127}
"""The greatest zero point, less the middle code, that a byte and kernels hold."""


def read_gptq(packed: Packed, found: Found) -> GroupTensor:
    """The matrix ``[n, k]``; scales are widened to float32.

    Raises WeightError where groups have not as many columns, or not the zero points, that the
    configuration promises, and where values have scales that cannot be right.
    """
    form = packed.format
    assert isinstance(form, Gptq)
    codes, zeros, scales = form.tensors(packed.name, packed.shape)
    n, k = packed.shape
    index = found.get(group_index(packed.name))
    order = None if index is None else column_order(*index, k, form.group_size)
    file, tensor = found[codes.name]
    # [k / together, n, 4 bytes] to [n, k / together, 4 bytes]: a row's codes side by side.
    by_rows = as_bytes(file.integers(tensor.name)).transpose(1, 0, 2).reshape(n, -1)
    middle = 1 << (form.bits - 1)
    kept = (unpacked(by_rows, form.bits) - np.uint8(middle)).view(np.int8)
    if order is not None:
        kept = np.ascontiguousarray(kept[:, order])
    file, tensor = found[zeros.name]
    stored = as_bytes(file.integers(tensor.name))
    points = unpacked(stored.reshape(len(stored), -1), form.bits).T.astype(np.int16)
    points += int(form.zeros_less_one) - middle
    where = f"{file.path}: tensor {tensor.name!r}"
    scheme = form.scheme
    if points.max(initial=0) > _MOST_ZERO[form.bits]:
        raise WeightError(
            f"{where} has zero points of {points.max() + middle}, which are not kept; "
            "quantize with checkpoint_format gptq_v2, or in 4 bits"
        )
    if form.symmetric and points.any():
        raise _not_symmetric(where, form, points)
    file, tensor = found[scales.name]
    widened = np.ascontiguousarray(file.view(tensor.name).T.astype(np.float32))
    require_usable(widened, f"{file.path}: tensor {tensor.name!r}", kept, points, form.group_size)
    sizes = form.group_size, scheme.group_size
    kept_points = np.ascontiguousarray(points, dtype=np.int8)
    return GroupTensor(
        scheme,
        kept,
        in_smaller_groups(widened, *sizes),
        in_smaller_groups(kept_points, *sizes) if scheme.zero_points else None,
        order,
    )


def _not_symmetric(where: str, form: Gptq, points: NDArray[np.int16]) -> WeightError:
    """The error for zero points that are not in the middle (0) though the codes are symmetric."""
    middle = 1 << (form.bits - 1)
    own, other = ("gptq", "gptq_v2") if form.zeros_less_one else ("gptq_v2", "gptq")
    problem = f"{where} has zero points other than {middle}, but config.json says sym is true"
    if (points == (1 if form.zeros_less_one else -1)).all():
        return WeightError(
            f"{problem}: all are off by one, as they are where checkpoint_format is not {own!r}; "
            f"set checkpoint_format to {other!r} in quantization_config"
        )
    return WeightError(
        f"{problem}; most likely checkpoint_format ({own!r}) or sym is wrong: take "
        "quantization_config from the original checkpoint, as sym false alone would hide a wrong "
        "format"
    )
