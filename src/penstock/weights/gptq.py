"""Reads matrices that GPTQ quantized, with exactly the values that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.gptq import Gptq, group_index
from penstock.quant import GroupTensor
from penstock.weights.tensor_file import Tensor, TensorFile

_MOST_ZERO: Final = {4: 8, 8: 127}
"""The greatest zero point, less the middle code, that a byte and kernels hold."""


def read_gptq(packed: Packed, found: Mapping[str, tuple[TensorFile, Tensor]]) -> GroupTensor:
    """The matrix ``[n, k]``; scales are widened to float32.

    Raises WeightError where groups have not as many columns, or not the zero points, that the
    configuration promises, and where values have scales that are negative.
    """
    form = packed.format
    assert isinstance(form, Gptq)
    codes, zeros, scales = form.tensors(packed.name, packed.shape)
    order = _order(packed, form, found)
    n = packed.shape[0]
    file, tensor = found[codes.name]
    # [k / together, n, 4 bytes] to [n, k / together, 4 bytes]: a row's codes side by side.
    by_rows = _bytes(file.integers(tensor.name)).transpose(1, 0, 2).reshape(n, -1)
    middle = 1 << (form.bits - 1)
    kept = (_unpacked(by_rows, form.bits) - np.uint8(middle)).view(np.int8)
    if order is not None:
        kept = np.ascontiguousarray(kept[:, order])
    file, tensor = found[zeros.name]
    stored = _bytes(file.integers(tensor.name))
    points = _unpacked(stored.reshape(len(stored), -1), form.bits).T.astype(np.int16)
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
    if not np.isfinite(widened).all():
        raise WeightError(f"{file.path}: tensor {tensor.name!r} has scales that are not finite")
    if widened.min(initial=0) < 0 and _has_values(kept, points, widened, form):
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has negative scales, which GPTQ "
            "never writes; download the checkpoint again, or quantize the model again"
        )
    return GroupTensor(
        scheme,
        kept,
        widened,
        np.ascontiguousarray(points, dtype=np.int8) if scheme.zero_points else None,
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


def _has_values(
    kept: NDArray[np.int8], points: NDArray[np.int16], scales: NDArray[np.float32], form: Gptq
) -> bool:
    """Whether a group whose scale is negative has a code other than its zero point.

    Arrays are codes ``[n, k]`` group by group, and zero points and scales ``[n, groups]``.
    """
    rows, groups = np.nonzero(scales < 0)
    size = form.group_size or kept.shape[1]
    return any(
        (kept[some, group * size : (group + 1) * size] != points[some, group, None]).any()
        for group in np.unique(groups)
        for some in (rows[groups == group],)
    )


def _order(
    packed: Packed, form: Gptq, found: Mapping[str, tuple[TensorFile, Tensor]]
) -> NDArray[np.int32] | None:
    """The columns group by group; None where they lie so. Raises WeightError where groups have not
    ``group_size`` columns each."""
    name = group_index(packed.name)
    if name not in found:
        return None
    file, tensor = found[name]
    k = packed.shape[1]
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.shape != (k,):
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for [{k}]; take both "
            "from one checkpoint"
        )
    groups = file.integers(tensor.name)
    in_order = np.arange(k) // (form.group_size or max(k, 1))
    if np.array_equal(groups, in_order):
        return None
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], in_order):
        raise WeightError(
            f"{where} does not give every group {form.group_size or k} columns; take the "
            "checkpoint from the original again"
        )
    return order


def _bytes(words: NDArray[Any]) -> NDArray[np.uint8]:
    """int32 ``[a, b]`` as bytes ``[a, b, 4]``, the lowest first."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)


def _unpacked(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes ``[rows, count]``, unsigned, of packed bytes."""
    if bits == 8:
        return rows
    codes = np.empty((len(rows), rows.shape[1] * 2), np.uint8)
    np.bitwise_and(rows, 15, out=codes[:, 0::2])
    np.right_shift(rows, 4, out=codes[:, 1::2])
    return codes
