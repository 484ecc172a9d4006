"""Blocks of files into the layout of kernels (``block_layouts.py``), on the device.

Every format is read into codes and what its planes share (:class:`Parts`), as bytes and halves;
nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from penstock.backends.cuda.block_layouts import LEVELED, MARKED, BlockLayout
from penstock.backends.cuda.packing import joined_planes, pad_columns


@dataclass(frozen=True)
class Parts:
    """Rows of a matrix taken apart.

    codes uint8 ``[n, k]``; scales, and what is added, of planes in order: bytes uint8
    ``[n, planes]``, or float16 of that shape, or float32, one for all columns that share it; units
    float16 ``[n, k / 256]``, of scales and of what is added, or float32, in every column that of
    the row.
    """

    codes: Tensor
    scales: Tensor
    least: Tensor | None = None
    units: Tensor | None = None
    least_units: Tensor | None = None


@dataclass(frozen=True)
class PackedRows:
    """Rows as kernels have them, but for what is stored by columns first: marks and units int32
    ``[words, n]``, bits uint8 ``[pieces, n, plane]``."""

    words: Tensor
    marks: Tensor
    bits: Tensor | None
    units: Tensor | None


def take_apart(format_name: str, blocks: Tensor) -> Parts:
    """The parts of blocks uint8 ``[n, blocks, block_bytes]``."""
    n = len(blocks)
    parts = _READERS[format_name](blocks.flatten(0, 1))

    def rows(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.reshape(n, -1)

    codes, scales = rows(parts.codes), rows(parts.scales)
    assert codes is not None
    assert scales is not None
    return Parts(codes, scales, rows(parts.least), rows(parts.units), rows(parts.least_units))


def pack(parts: Parts, layout: BlockLayout, padded: int) -> PackedRows:
    """Rows of ``padded`` columns; what pads them has the scale 0."""
    codes = pad_columns(parts.codes, padded)
    rows = len(codes)
    words = joined_planes(codes & ((1 << layout.low) - 1), layout.low, layout.planes, layout.plane)
    if layout.low != 2:
        words = _numbers(words, torch.int16)
    bits = None
    if layout.high:
        pieces = joined_planes(codes >> layout.low, layout.high, 8 // layout.high, layout.plane)
        bits = pieces.view(rows, -1, layout.plane).transpose(0, 1)
    return PackedRows(words, _marks(parts, layout, padded), bits, _units(parts, padded))


def _marks(parts: Parts, layout: BlockLayout, padded: int) -> Tensor:
    planes = padded // (layout.shared or layout.plane)
    each = [parts.scales] if parts.least is None else [parts.scales, parts.least]
    filled = [torch.nn.functional.pad(one, (0, planes - one.shape[1])) for one in each]
    groups = padded // MARKED
    if layout.scales in ("halves", "singles"):
        together = torch.stack(filled, dim=2).reshape(len(filled[0]), -1)
    else:
        by_group = [one.view(len(one), groups, -1) for one in filled]
        together = torch.cat(by_group, dim=2).reshape(len(filled[0]), -1)
    return _numbers(together, torch.int32).t()


def _units(parts: Parts, padded: int) -> Tensor | None:
    if parts.units is None:
        return None
    if parts.units.dtype == torch.float32:
        return _numbers(parts.units[:, :1], torch.int32).expand(-1, padded // LEVELED).t()
    least = torch.zeros_like(parts.units) if parts.least_units is None else parts.least_units
    return _numbers(torch.stack([parts.units, least], dim=2).flatten(1), torch.int32).t()


def _numbers(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as numbers of another size. A single row may have any stride, so that it is
    not viewed as it is."""
    return rows.reshape(-1).clone().view(dtype).view(len(rows), -1)


def _half(blocks: Tensor, at: int) -> Tensor:
    return _numbers(blocks[:, at : at + 2], torch.float16)


def _halves(packed: Tensor) -> Tensor:
    """Codes of 4 bits, of which bytes ``[..., n]`` have the first n in their low bits."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _planes(packed: Tensor, together: int, width: int) -> Tensor:
    """As ``quant.formats.parts.planes``."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=packed.device)[:, None]
    runs = packed.reshape(len(packed), -1, 1, together)
    return ((runs >> shifts) & ((1 << width) - 1)).reshape(len(packed), -1)


def _bits(packed: Tensor) -> Tensor:
    """The bits of bytes ``[blocks, n]``, the lowest of each first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> shifts) & 1).flatten(1)


def _q4_0(blocks: Tensor) -> Parts:
    return Parts(_halves(blocks[:, 2:]), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> Parts:
    return Parts(_halves(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    return Parts(_halves(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4, _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    codes = _halves(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return Parts(codes, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 2:], _half(blocks, 0))


def _q2_k(blocks: Tensor) -> Parts:
    codes = _planes(blocks[:, 16:80], 32, 2)
    return Parts(codes, blocks[:, :16], None, _half(blocks, 80), -_half(blocks, 82))


def _q3_k(blocks: Tensor) -> Parts:
    packed = blocks[:, 96:108]
    scales = _planes(packed[:, :8], 8, 4) | _planes(packed[:, 8:], 4, 2) << 4
    codes = _planes(blocks[:, 32:96], 32, 2) | _planes(blocks[:, :32], 32, 1) << 2
    return Parts(codes, scales - 32, None, _half(blocks, 108))


def _q4_k(blocks: Tensor) -> Parts:
    scales, least = _six_bits(blocks[:, 4:16])
    codes = _planes(blocks[:, 16:], 32, 4)
    return Parts(codes, scales, least, _half(blocks, 0), -_half(blocks, 2))


def _q5_k(blocks: Tensor) -> Parts:
    scales, least = _six_bits(blocks[:, 4:16])
    codes = _planes(blocks[:, 48:], 32, 4) | _planes(blocks[:, 16:48], 32, 1) << 4
    return Parts(codes, scales, least, _half(blocks, 0), -_half(blocks, 2))


def _q6_k(blocks: Tensor) -> Parts:
    codes = _planes(blocks[:, :128], 64, 4) | _planes(blocks[:, 128:192], 32, 2) << 4
    return Parts(codes, blocks[:, 192:208], None, _half(blocks, 208))


def _iq4_nl(blocks: Tensor) -> Parts:
    return Parts(_halves(blocks[:, 2:]), _half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Parts:
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)
    high = ((blocks[:, 2:4, None] >> shifts) & 3).reshape(len(blocks), 8)
    low = torch.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], dim=2).reshape(len(blocks), 8)
    codes = _planes(blocks[:, 8:], 16, 4)
    return Parts(codes, (low | high << 4) - 32, None, _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> Parts:
    return Parts(_halves(blocks[:, 1:]), blocks[:, :1])


def _nvfp4(blocks: Tensor) -> Parts:
    codes = _halves(blocks[:, 4:].reshape(len(blocks), 4, 8))
    return Parts(codes.flatten(1), blocks[:, :4])


def _nvfp4_scaled(blocks: Tensor) -> Parts:
    codes = torch.stack([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], dim=2).flatten(1)
    return Parts(codes, blocks[:, 4:6], None, _single(blocks))


def _fp8(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 4:], _single(blocks))


def _mxfp8(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 1:], blocks[:, :1])


def _single(blocks: Tensor) -> Tensor:
    return _numbers(blocks[:, :4], torch.float32)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight least values (``quant.formats.k_quants``)."""
    first, low = packed[:, :8], packed[:, 8:]
    high = (first >> 2) & 0x30
    first = first & 0x3F
    scales = torch.cat([first[:, :4], low & 15 | high[:, :4]], dim=1)
    least = torch.cat([first[:, 4:], low >> 4 | high[:, 4:]], dim=1)
    return scales, least


_READERS: Final[Mapping[str, Callable[[Tensor], Parts]]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "NVFP4_SCALED": _nvfp4_scaled,
    "FP8_128": _fp8,
    "FP8_32": _fp8,
    "MXFP8": _mxfp8,
}
