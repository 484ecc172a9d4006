"""Matrices that a checkpoint has quantized, as blocks of GGUF's types that stand for the same
values.

Points of 2 to 4 bits with one zero for all are Q4_0's, less 8; those with zero points reach from
-15 to 15, which are Q5_0's. Q4_1 is of no use for these: it has the least value of a block in
float16, and a zero point times a scale nearly always needs more bits than that has. Groups that are
larger than a block are several blocks with the same scale.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.quant import BlockTensor, GroupTensor, StoredTensor
from penstock.quant.formats import GGUF_FORMATS
from penstock.quant.scheme import BlockScheme, GroupScheme, QuantScheme

Bytes = NDArray[np.uint8]

COLUMNS: Final = 32
"""Columns of a block of all types that are written."""


def block_type(scheme: QuantScheme | None) -> str | None:
    """The type whose blocks have all values of matrices of a scheme; None: there is none."""
    if isinstance(scheme, BlockScheme):
        return scheme.format if scheme.format in GGUF_FORMATS else None
    if not isinstance(scheme, GroupScheme):
        return None
    if scheme.bits == 4:
        return "Q5_0" if scheme.zero_points else "Q4_0"
    # Codes of 8 bits have zero points in the scheme where they may be -128, all of them 0.
    return "Q8_0"


def blocks_of(tensor: StoredTensor, kind: str, name: str) -> Bytes:
    """The bytes ``[n, bytes of a row]`` of a matrix in the type ``kind``, that which
    :func:`block_type` has for its scheme.

    Raises WeightError, with ``name``, where the order of columns, a point or a scale is none that
    blocks have.
    """
    n = tensor.shape[0]
    if isinstance(tensor, BlockTensor):
        return tensor.blocks.reshape(n, -1)
    assert isinstance(tensor, GroupTensor)
    if tensor.order is not None:
        raise WeightError(
            f"{name} has groups of columns that are no neighbours, which no GGUF file holds; "
            "quantize with --act-order static"
        )
    points = tensor.points()
    if kind == "Q8_0" and not (points.min(initial=0) >= -128 and points.max(initial=0) <= 127):
        raise WeightError(
            f"{name} has zero points of 8 bits, which no GGUF file holds; quantize without "
            "--asymmetric"
        )
    blocks = tensor.codes.shape[1] // COLUMNS
    groups = tensor.scales.shape[1]
    with np.errstate(over="ignore"):
        halves = tensor.scales.astype("<f2")
    if not np.array_equal(halves.astype(np.float32), tensor.scales):
        raise WeightError(
            f"{name} has scales that are no float16, as GGUF's are; quantize with --format gptq, "
            "whose scales are"
        )
    size = -(-blocks // groups) if tensor.scheme.group_size is None else None
    each = size or (tensor.scheme.group_size or COLUMNS) // COLUMNS
    scales = np.repeat(halves, each, axis=1)[:, :blocks]
    of_blocks = points.reshape(n, blocks, COLUMNS)
    parts = [scales.reshape(n, blocks, 1).view(np.uint8), *_codes(of_blocks, kind)]
    return np.concatenate(parts, axis=2).reshape(n, -1)


def _codes(points: NDArray[np.int32], kind: str) -> list[Bytes]:
    """What follows the scales of blocks ``[n, blocks, 32]``."""
    if kind == "Q8_0":
        return [points.astype(np.int8).view(np.uint8)]
    codes = (points + (8 if kind == "Q4_0" else 16)).astype(np.uint8)
    half = COLUMNS // 2
    low = codes[..., :half] & np.uint8(15) | codes[..., half:] << np.uint8(4)
    if kind == "Q4_0":
        return [low]
    return [np.packbits(codes >> np.uint8(4), axis=2, bitorder="little"), low]
