"""The layout of quantized weights on the GPU.

Rows of W keep to themselves, one after another, so parts of a joined matrix are filled in any
order. Their codes are padded with zeros to ``padded`` columns, whole iterations of the kernels.

8 bits that multiply int8: a byte a code. Else codes lie in words of 16 bits, two or four of them,
of columns that are one *plane* apart. A *unit* of ``plane`` words holds two or four planes of as
many columns: word j has those of columns ``j``, ``plane + j``, ..., the first in its lowest bits.
Threads load 16 bytes, eight words, and make eight neighbouring columns of each plane of them by
shift and mask, in place: nothing moves between lanes. A plane is 32 columns, or 64 where as many
8-bit codes share a scale, so it never has two scales. Codes are two's complement, 4-bit ones on the
grid 0..15 as they are.

What is shared by columns lies by group, then by row of W (``[groups, n]``), so that the 64 or 128
rows of a tile are read in one piece: scales as float32, windows and zero points as four bytes of
consecutive groups in an int32, the first lowest (loads of fewer bytes are not made ahead of time).
A row's own scale is float32 ``[n]``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pad_columns(codes: Tensor, padded: int) -> Tensor:
    """``codes`` ``[n, k]`` with columns of zeros up to ``padded``."""
    return torch.nn.functional.pad(codes, (0, padded - codes.shape[1]))


def pack_planes(codes: Tensor, bits: int, plane: int) -> Tensor:
    """Codes int8 ``[n, k]``, k a multiple of a unit, to words int16 ``[n, k * bits / 16]``."""
    units = codes.view(torch.uint8).reshape(len(codes), -1, 16 // bits, plane)
    if bits == 4:
        units = (units[:, :, 0::2] & 15) | (units[:, :, 1::2] << 4)
    # Bytes of a word ascend on every device that torch runs on.
    return units.transpose(2, 3).contiguous().view(torch.int16).reshape(len(codes), -1)


def pack_fours(values: Tensor) -> Tensor:
    """Bytes ``[n, groups]`` to int32 ``[ceil(groups / 4), n]``, the first group's byte lowest."""
    groups = values.shape[1]
    padded = pad_columns(values.view(torch.uint8), -(-groups // 4) * 4)
    return padded.contiguous().view(torch.int32).t().contiguous()


def joined_planes(codes: Tensor, width: int, planes: int, plane: int) -> Tensor:
    """Codes of ``width`` bits ``[n, k]`` of so many planes joined into bytes, or into two for each
    place, uint8 ``[n, k * width / 8]``."""
    each = codes.view(len(codes), -1, planes, plane)
    shifts = torch.arange(0, planes * width, width, device=codes.device, dtype=torch.int32)
    whole = (each.to(torch.int32) << shifts[:, None]).sum(dim=2, dtype=torch.int32)
    size = planes * width // 8
    in_bytes = whole.contiguous().view(torch.uint8).view(*whole.shape, 4)[..., :size]
    return in_bytes.reshape(len(codes), -1)
