"""Reads matrices that bitsandbytes quantized, with the values that they stand for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.bitsandbytes import BLOCK, NESTED_BLOCK, Bnb4, Bnb8
from penstock.models.json_objects import parse_json_object
from penstock.quant import CodebookTensor, GroupTensor
from penstock.weights.integer_codes import require_usable
from penstock.weights.tensor_file import Found

F32 = NDArray[np.float32]


def read_bnb4(packed: Packed, found: Found) -> CodebookTensor:
    """The matrix ``[n, k]``, by the table that its tensors have.

    Raises WeightError where what they say of it is not what the configuration does, and where
    absolute maxima are not finite or negative.
    """
    form = packed.format
    assert isinstance(form, Bnb4)
    n, k = packed.shape
    weight, *_ = form.tensors(packed.name, packed.shape)
    scales = read_maxima(packed, form, found)
    file, tensor = found[weight.name]
    octets = file.codes(tensor.name).reshape(-1)
    codes = np.stack([octets >> 4, octets & 15], axis=1).reshape(-1)[: n * k]
    # Blocks go on from one row to the next, where they are no part of one.
    size = math.gcd(BLOCK, k)
    of_groups = scales[np.arange(0, n * k, size) // BLOCK]
    return CodebookTensor(
        read_table(packed, found),
        codes.reshape(n, k),
        of_groups.reshape(n, -1),
        (1, size),
    )


def read_table(packed: Packed, found: Found) -> F32:
    """What the sixteen codes of a matrix of 4 bits stand for."""
    return _floats(f"{packed.name}.weight.quant_map", found)


def read_maxima(packed: Packed, form: Bnb4, found: Found) -> F32:
    """The absolute maximum of each of its blocks.

    Raises WeightError where they are not finite or negative, or where the tensors say of the matrix
    what the configuration does not.
    """
    absmax = form.tensors(packed.name, packed.shape)[1].name
    offset = _offset(packed, form, found)
    file, tensor = found[absmax]
    scales: F32
    if form.nested:
        # As bitsandbytes computes it: a table's value, times its block's maximum, plus the mean.
        stem = absmax.removesuffix("absmax")
        own = _floats(f"{stem}nested_quant_map", found)[file.codes(tensor.name)]
        maxima = _floats(f"{stem}nested_absmax", found)
        scales = own * np.repeat(maxima, NESTED_BLOCK)[: len(own)] + np.float32(offset)
    else:
        scales = _floats(absmax, found)
    if not np.isfinite(scales).all() or scales.min(initial=0) < 0:
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has maxima that are not finite or negative; "
            "download the checkpoint again"
        )
    return scales


def read_bnb8(packed: Packed, found: Found) -> GroupTensor:
    """The matrix ``[n, k]``. Raises WeightError where codes or scales cannot be right."""
    form = packed.format
    assert isinstance(form, Bnb8)
    weight, maxima = form.tensors(packed.name, packed.shape)
    file, tensor = found[weight.name]
    codes = file.codes(tensor.name).view(np.int8)
    if codes.min(initial=0) < form.scheme.lowest:
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has codes of -128, which bitsandbytes never "
            "writes; download the checkpoint again"
        )
    scales = _floats(maxima.name, found)[:, None] / np.float32(127)
    file, tensor = found[maxima.name]
    require_usable(scales, f"{file.path}: tensor {tensor.name!r}", codes, None, None)
    return GroupTensor(form.scheme, codes, scales)


def _floats(name: str, found: Found) -> F32:
    file, tensor = found[name]
    return file.view(tensor.name).astype(np.float32)


def _offset(packed: Packed, form: Bnb4, found: Found) -> float:
    """What is added to absolute maxima that were rounded. Raises WeightError where the matrix was
    not quantized as it is read."""
    name = form.state(packed.name)
    if name not in found:
        raise WeightError(
            f"{packed.name} lacks tensor {name!r}, which says how it was quantized; download the "
            "checkpoint again"
        )
    file, tensor = found[name]
    where = f"{file.path}: tensor {tensor.name!r}"
    state = parse_json_object(file.octets(tensor.name).tobytes(), where, WeightError)
    wanted: dict[str, object] = {
        "quant_type": form.kind,
        "blocksize": BLOCK,
        "shape": list(packed.shape),
    }
    if form.nested:
        wanted["nested_blocksize"] = NESTED_BLOCK
    for field, value in wanted.items():
        if state.get(field) != value:
            raise WeightError(
                f"{where} has {field} {state.get(field)!r}, and is read only with {value!r}; take "
                "config.json and weights from one checkpoint"
            )
    offset = state.get("nested_offset", 0.0)
    if not isinstance(offset, int | float) or isinstance(offset, bool) or not math.isfinite(offset):
        raise WeightError(f"{where} has nested_offset {offset!r}, which is no number")
    return float(offset)
