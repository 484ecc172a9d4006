"""Puts codes and scales of FP8, FP4 and NF4 checkpoints together into blocks for kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed, PackedFormat
from penstock.models.bitsandbytes import Bnb4
from penstock.models.float_codes import Fp8, Mxfp4, Nvfp4
from penstock.models.in_blocks import InBlocks
from penstock.quant import BlockTensor
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES
from penstock.weights.bitsandbytes import read_maxima, read_table
from penstock.weights.float_codes import (
    read_factor,
    read_mxfp4_parts,
    read_scales,
    require_numbers,
)
from penstock.weights.integer_codes import require_shape
from penstock.weights.rows import Runs, rows_of
from penstock.weights.tensor_file import Found

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

_E4M3_MOST: Final = 448.0
_E2M1_MOST: Final = 6.0


def read_in_blocks(packed: Packed, found: Found, runs: Runs | None = None) -> BlockTensor:
    """The rows of each of ``runs`` (first, end) of the matrix, one after another; None: all.

    Raises WeightError where scales or codes cannot be right.
    """
    form = packed.format
    assert isinstance(form, InBlocks)
    runs = ((0, packed.rows),) if runs is None else runs
    blocks = _READERS[type(form.form)](packed, form, found, runs)
    blocks.flags.writeable = False
    return BlockTensor(BLOCK_FORMATS[form.scheme.format], blocks)


def _read_fp8(packed: Packed, form: InBlocks, found: Found, runs: Runs) -> Bytes:
    own = form.form
    assert isinstance(own, Fp8)
    n, k = packed.shape
    tall, wide = (own.tile[0] or max(n, 1)), (own.tile[1] or k)
    weight, stored = own.tensors(packed.name, packed.shape)
    scales = read_scales(stored, found, most=_E4M3_MOST)
    file, tensor = found[weight.name]
    codes = rows_of(file.codes(tensor.name), runs)
    require_numbers(codes, f"{file.path}: tensor {tensor.name!r}")
    rows = _places(runs)
    columns = np.arange(0, k, form.scheme.columns)
    by_block = scales[(rows // tall)[:, None], (columns // wide)[None]]
    if form.scheme.format != "MXFP8":
        return _joined(form, by_block[..., None].view(np.uint8), codes)
    mantissas, exponents = np.frexp(by_block)
    if (mantissas != 0.5).any():
        file, tensor = found[stored.name]
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has scales that are no powers of two, as its "
            "format has them; take configuration and weights from one checkpoint"
        )
    return _joined(form, (exponents + 126).astype(np.uint8)[..., None], codes)


def _read_mxfp4(packed: Packed, form: InBlocks, found: Found, runs: Runs) -> Bytes:
    codes, exponents = read_mxfp4_parts(replace(packed, format=form.form), found, runs)
    return _joined(form, exponents[..., None], _by_halves(codes))


def _read_nvfp4(packed: Packed, form: InBlocks, found: Found, runs: Runs) -> Bytes:
    own = form.form
    assert isinstance(own, Nvfp4)
    require_shape(packed.name, packed.shape, found)
    weight, stored, _ = own.tensors(packed.name, packed.shape)
    file, tensor = found[weight.name]
    codes = rows_of(file.codes(tensor.name), runs)
    factor = read_factor(own, packed, found)
    read_scales(stored, found, most=_E2M1_MOST * float(factor))
    file, tensor = found[stored.name]
    octets = rows_of(file.codes(tensor.name), runs)
    head = np.empty((len(octets), octets.shape[1] // 2, 6), np.uint8)
    head[..., :4] = np.frombuffer(np.float32(factor).tobytes(), np.uint8)
    head[..., 4:] = octets.reshape(*head.shape[:2], 2)
    return _joined(form, head, codes)


def _read_bnb4(packed: Packed, form: InBlocks, found: Found, runs: Runs) -> Bytes:
    own = form.form
    assert isinstance(own, Bnb4)
    n, k = packed.shape
    weight, *_ = own.tensors(packed.name, packed.shape)
    scales = read_maxima(packed, own, found).reshape(n, -1)
    table = read_table(packed, found)
    known = np.array(NF4_VALUES if own.kind == "nf4" else FP4_VALUES, np.float32)
    if not np.allclose(table, known, rtol=2.0**-8, atol=1e-6):
        raise WeightError(
            f"{packed.name} has a table (quant_map) that is not {own.kind.upper()}'s, which "
            "kernels have; take a checkpoint as bitsandbytes writes it, or choose --quantization "
            "int8, which reads its values and rounds them once more"
        )
    file, tensor = found[weight.name]
    codes = rows_of(file.codes(tensor.name).reshape(n, k // 2), runs)
    return _joined(form, rows_of(scales, runs)[..., None].view(np.uint8), codes)


_READERS: Final[Mapping[type[PackedFormat], Callable[[Packed, InBlocks, Found, Runs], Bytes]]] = {
    Fp8: _read_fp8,
    Mxfp4: _read_mxfp4,
    Nvfp4: _read_nvfp4,
    Bnb4: _read_bnb4,
}


def _joined(form: InBlocks, head: Bytes, codes: Bytes) -> Bytes:
    """Blocks of ``head`` uint8 ``[rows, blocks, bytes]`` and, behind it, of as many codes of the
    row ``[rows, bytes]`` as are left."""
    rows, count, first = head.shape
    blocks = np.empty((rows, count, form.scheme.block_bytes), np.uint8)
    blocks[..., :first] = head
    blocks[..., first:] = codes.reshape(rows, count, -1)
    return blocks


def _by_halves(codes: Bytes) -> Bytes:
    """Pairs of neighbours, 32 codes at a time, as pairs of one of the first half and one of the
    second."""
    rows = codes.reshape(len(codes), -1, 2, 8)
    low, high = rows & np.uint8(15), rows >> np.uint8(4)
    # Byte j of a half has its codes 2 j and 2 j + 1.
    first = np.stack([low, high], axis=-1).reshape(*rows.shape[:3], 16)
    paired: Bytes = (first[:, :, 0] | first[:, :, 1] << np.uint8(4)).reshape(len(codes), -1)
    return paired


def _places(runs: Runs) -> NDArray[np.intp]:
    return np.concatenate([np.arange(first, end) for first, end in runs])
