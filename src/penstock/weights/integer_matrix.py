"""Reads matrices of integers that compressed-tensors wrote, with exactly the values that they stand
for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.integer_matrix import Integers
from penstock.quant import CodebookTensor, GroupTensor
from penstock.weights.integer_codes import (
    as_bytes,
    column_order,
    in_smaller_groups,
    require_shape,
    require_usable,
    unpacked,
)
from penstock.weights.sparse24 import expanded
from penstock.weights.tensor_file import Found

I8 = NDArray[np.int8]


def read_integers(packed: Packed, found: Found) -> GroupTensor | CodebookTensor:
    """The matrix ``[n, k]``; scales are widened to float32.

    Raises WeightError where codes have more bits than they should, and where scales or groups
    cannot be right.
    """
    form = packed.format
    assert isinstance(form, Integers)
    n, k = packed.shape
    name = packed.name
    require_shape(packed.name, packed.shape, found)
    stored = {each.name.removeprefix(f"{name}."): each for each in form.tensors(name, packed.shape)}
    if form.packed:
        file, tensor = found[f"{name}.weight_packed"]
        codes = _signed(file.integers(tensor.name), form)[:, :k]
    elif form.sparse:
        codes = expanded(_bytes(f"{name}.compressed", found, form), name, packed.shape, found)
    else:
        codes = _bytes(f"{name}.weight", found, form)
    order = None
    if form.any_order:
        file, tensor = found[f"{name}.weight_g_idx"]
        if (file.integers(tensor.name) != -1).any():  # which stands for columns in order
            order = column_order(file, tensor, k, form.group)
    codes = np.ascontiguousarray(codes if order is None else codes[:, order])
    shape = (n, 1 if form.group is None else k // form.group)
    scales_of = stored["weight_scale"]
    file, tensor = found[scales_of.name]
    scales = file.view(tensor.name).astype(np.float32).reshape(scales_of.shape)
    scales = np.ascontiguousarray(np.broadcast_to(scales, shape))
    points: I8 = np.zeros(shape, np.int8)
    if form.zero_points:
        points_of = stored["weight_zero_point"]
        file, tensor = found[points_of.name]
        if points_of.element == "int32":
            words = file.integers(tensor.name).reshape(points_of.shape)
            points = np.ascontiguousarray(_signed(words.T, form)[:, :n].T)
        else:
            own = _bytes(points_of.name, found, form).reshape(points_of.shape)
            points = np.ascontiguousarray(np.broadcast_to(own, shape))
    file, tensor = found[scales_of.name]
    where = f"{file.path}: tensor {tensor.name!r}"
    require_usable(scales, where, codes, points, form.group)
    scheme = form.scheme
    if scheme is None:
        return _as_points(codes, points, scales, form)
    sizes = form.group, scheme.group_size
    kept = in_smaller_groups(points, *sizes) if scheme.zero_points else None
    return GroupTensor(scheme, codes, in_smaller_groups(scales, *sizes), kept, order)


def _signed(words: NDArray[Any], form: Integers) -> I8:
    """Codes ``[rows, count]`` of words ``[rows, count * bits / 32]``."""
    codes = unpacked(as_bytes(words).reshape(len(words), -1), form.bits)
    return (codes - np.uint8(1 << (form.bits - 1))).view(np.int8)


def _bytes(name: str, found: Found, form: Integers) -> I8:
    """Codes that take a byte each."""
    file, tensor = found[name]
    codes = file.codes(tensor.name).view(np.int8)
    if form.bits == 4 and codes.size and (codes.min() < -8 or codes.max() > 7):
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has codes from {codes.min()} to {codes.max()}, "
            "but config.json says that num_bits is 4; take both from one checkpoint"
        )
    return codes


def _as_points(codes: I8, zeros: I8, scales: NDArray[np.float32], form: Integers) -> CodebookTensor:
    """The matrix in groups that no kernel has. Points of 4 bits are from -15 to 15."""
    assert form.group is not None
    points = codes.astype(np.int16) - np.repeat(zeros, form.group, axis=1)
    table = np.arange(-128, 128).astype(np.float32)
    return CodebookTensor(table, (points + 128).astype(np.uint8), scales, (1, form.group))
