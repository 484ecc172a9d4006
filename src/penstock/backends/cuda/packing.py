"""How quantized weights lie on the GPU.

Rows of W keep to themselves, one after another, so parts of a joined matrix are filled in any
order. Their codes are padded with zeros to ``padded`` columns, whole iterations of the kernels.

8 bits: a byte a code. 4 bits: a *unit* of ``2 * half`` columns is ``half`` bytes; byte j has the
code of column j in its low half and that of column ``half + j`` in its high half. Threads load 16
consecutive bytes, and shifts and masks make 16 consecutive columns of either half in place: nothing
moves between lanes. ``half`` is the columns that share a scale, so the halves of a unit are two
groups: 32, 64 or 128 in groups, 32 on the grid (its windows), 64 where a row has one scale.
Codes of groups are two's complement; codes on the grid are 0..15 as they are.

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


def pack_halves(codes: Tensor, half: int) -> Tensor:
    """4-bit codes int8 ``[n, k]``, k a multiple of ``2 * half``, to bytes int8 ``[n, k / 2]``."""
    units = codes.view(torch.uint8).reshape(len(codes), -1, 2, half)
    packed = (units[:, :, 0] & 15) | (units[:, :, 1] << 4)
    return packed.reshape(len(codes), -1).view(torch.int8)


def pack_fours(values: Tensor) -> Tensor:
    """Bytes ``[n, groups]`` to int32 ``[ceil(groups / 4), n]``, the first group's byte lowest."""
    groups = values.shape[1]
    padded = pad_columns(values.view(torch.uint8), -(-groups // 4) * 4)
    # Bytes of a word ascend on every device that torch runs on.
    return padded.contiguous().view(torch.int32).t().contiguous()
