"""Codes of integers as checkpoints pack them, and the checks that their scales have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Shape
from penstock.weights.tensor_file import Found, Tensor, TensorFile


def require_shape(name: str, shape: Shape, found: Found, tensor: str = "weight_shape") -> None:
    """Raise WeightError where the ``tensor`` that says of matrix ``name`` which shape it had before
    it was packed is there, and says another than ``shape``."""
    stored = f"{name}.{tensor}"
    if stored not in found:
        return
    file, own = found[stored]
    said = file.integers(own.name).reshape(-1).tolist()
    if said != list(shape):
        raise WeightError(
            f"{file.path}: tensor {own.name!r} says that the matrix is {said}, but config.json "
            f"asks for {list(shape)}; take both from one checkpoint"
        )


def as_bytes(words: NDArray[Any]) -> NDArray[np.uint8]:
    """int32 ``[a, b]`` as bytes ``[a, b, 4]``, the lowest first."""
    return np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)


def unpacked(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes ``[rows, count]``, unsigned, of packed bytes, the low bits first."""
    if bits == 8:
        return rows
    if bits != 4:
        return _unpacked_bits(rows, bits)
    codes = np.empty((len(rows), rows.shape[1] * 2), np.uint8)
    np.bitwise_and(rows, 15, out=codes[:, 0::2])
    np.right_shift(rows, 4, out=codes[:, 1::2])
    return codes


def _unpacked_bits(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes that may lie across bytes, 8 of them in ``bits`` bytes."""
    count = rows.shape[1] * 8 // bits
    parts = np.empty((len(rows), count, bits), np.uint8)
    stream = np.unpackbits(rows, axis=1, bitorder="little")[:, : count * bits]
    parts[:] = stream.reshape(len(rows), count, bits)
    return np.packbits(parts, axis=2, bitorder="little")[:, :, 0]


def column_order(
    file: TensorFile, tensor: Tensor, k: int, group: int | None
) -> NDArray[np.int32] | None:
    """The columns group by group, of a tensor with the group of each; None where they lie so.

    Raises WeightError where groups have not ``group`` columns each.
    """
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.shape != (k,):
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for [{k}]; take both "
            "from one checkpoint"
        )
    groups = file.integers(tensor.name)
    in_order = np.arange(k) // (group or max(k, 1))
    if np.array_equal(groups, in_order):
        return None
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], in_order):
        raise WeightError(
            f"{where} does not give every group {group or k} columns; take the "
            "checkpoint from the original again"
        )
    return order


def require_usable(
    scales: NDArray[np.float32],
    where: str,
    codes: NDArray[np.int8],
    points: NDArray[Any] | None,
    group: int | None,
) -> None:
    """Raise WeightError where scales cannot be right.

    Arrays are scales and zero points ``[n, groups]`` (None: 0), and codes ``[n, k]``, group by
    group of ``group`` columns. Scales are finite, not all of them 0, and negative only in a group
    all of whose codes are the zero point. A group of very small values has one that rounds to 0.
    """
    if not np.isfinite(scales).all():
        raise WeightError(f"{where} has scales that are not finite; download the checkpoint again")
    if scales.size and not scales.any():
        raise WeightError(f"{where} has no scale but 0; download the checkpoint again")
    if scales.min(initial=0) >= 0:
        return
    rows, groups = np.nonzero(scales < 0)
    size = group or codes.shape[1]
    for each in np.unique(groups):
        some = rows[groups == each]
        zeros = np.zeros((len(some), 1)) if points is None else points[some, each, None]
        if (codes[some, each * size : (each + 1) * size] != zeros).any():
            raise WeightError(
                f"{where} has negative scales, which quantization never makes; download the "
                "checkpoint again, or quantize the model again"
            )


def in_smaller_groups(
    of_groups: NDArray[Any], stored: int | None, kept: int | None
) -> NDArray[Any]:
    """What is of groups of ``stored`` columns ``[n, groups]``, for those of ``kept`` that they are
    cut into."""
    if stored is None or kept is None or stored == kept:
        return of_groups
    return np.repeat(of_groups, stored // kept, axis=1)
