"""Rounding of weights on the device: ``quant.quantize`` and ``quant.quantize_to_grid``, bit by bit.

Elementwise float32 additions, divisions and roundings, and minima and maxima: the same numbers on
every device. Callers pass slices of rows (:func:`slices`), which bounds the scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from penstock.quant.grid import WINDOW_REACH
from penstock.quant.scheme import GRID_GROUP, GridScheme, GroupScheme

SLICE = 1 << 22
"""Elements rounded at a time. At most about 30 bytes an element are in use: 120 MiB."""

_TINY = torch.finfo(torch.float32).tiny


def slices(rows: int, k: int) -> Iterator[slice]:
    """Slices of ``rows`` rows of ``k`` columns, of ``SLICE`` elements or one row at least."""
    step = max(1, SLICE // max(k, 1))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def round_to_grid(matrix: Tensor, scheme: GridScheme) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes int8 ``[n, k]``, windows uint8 ``[n, ceil(k / 32)]`` (none in 8 bits), scales ``[n]``.

    As :class:`penstock.quant.GridTensor` has them; last, a bool ``[]``: all of ``matrix`` is
    finite. If it is not, the others mean nothing.
    """
    x = matrix.float()
    n, k = x.shape
    finite = torch.isfinite(x).all()
    most = x.abs().amax(dim=1)
    scales = most / _on(x, 127 if scheme.bits == 8 else float(WINDOW_REACH))
    scales = torch.where(scales < _TINY, 0, scales)
    nil = (scales == 0)[:, None]
    on_grid = torch.where(nil, 0, x / torch.where(nil, 1, scales[:, None]))
    if scheme.bits == 8:
        codes = on_grid.round_().clamp_(-127, 127).to(torch.int8)
        return codes, torch.empty((n, 0), dtype=torch.uint8, device=x.device), scales, finite
    groups = -(-k // GRID_GROUP)
    padded = torch.nn.functional.pad(on_grid, (0, groups * GRID_GROUP - k))
    codes, windows = _fit(padded.view(n, groups, GRID_GROUP))
    codes = torch.where(nil[:, :, None], 0, codes).view(n, -1)[:, :k]
    return codes, torch.where(nil, 0, windows), scales, finite


def _on(x: Tensor, divisor: float) -> Tensor:
    """``divisor`` on x's device: by a number of Python torch multiplies with its reciprocal."""
    return torch.full((), divisor, dtype=torch.float32, device=x.device)


def _fit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 and windows uint8 of points ``[n, groups, 32]``."""
    low, high = x.aminmax(dim=2)
    up = high > -low
    step = (torch.where(up, high, -low) / 8).ceil_().clamp_(1, 15)
    origin = torch.where(up, 7.0, 8.0)
    codes = (x / step[:, :, None]).round_().add_(origin[:, :, None]).clamp_(0, 15)
    return codes.to(torch.int8), (step - 1 + 16 * origin).to(torch.uint8)


def round_to_groups(
    matrix: Tensor, scheme: GroupScheme
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Codes int8 ``[n, k]``, scales float32 ``[n, groups]``, zeros int8 like them or None.

    As :class:`penstock.quant.GroupTensor` has them; last, a bool ``[]``: all scales are finite,
    which they are not where a value is not. Then the others mean nothing.
    """
    x = matrix.float()
    n, k = x.shape
    size = min(scheme.group_size or k, k)
    whole = k // size * size
    codes, scales, zeros = [], [], []
    for part, width in ((x[:, :whole], size), (x[:, whole:], k - whole)):
        if part.shape[1]:
            grouped = part.reshape(n, -1, width)
            of_part = _span(grouped, scheme) if scheme.zero_points else _symmetric(grouped, scheme)
            codes.append(of_part[0].view(n, -1))
            scales.append(of_part[1])
            zeros.append(of_part[2])
    joined = torch.cat(scales, dim=1)
    return (
        torch.cat(codes, dim=1),
        joined,
        torch.cat(zeros, dim=1) if scheme.zero_points else None,
        torch.isfinite(joined).all(),
    )


def _symmetric(x: Tensor, scheme: GroupScheme) -> tuple[Tensor, Tensor, Tensor]:
    """Codes ``[n, groups, size]``, scales and zeros (all 0) of groups ``[n, groups, size]``."""
    low, high = x.aminmax(dim=2)
    if scheme.bits == 8:
        scales = torch.maximum(high, -low) / _on(x, 127)
    else:
        scales = torch.where(high > -low, high, low) / -8
    codes = (x / scales[:, :, None]).round_().nan_to_num_(nan=0.0)
    codes = codes.clamp_(scheme.lowest, scheme.highest).to(torch.int8)
    return codes, scales + 0, torch.zeros_like(scales, dtype=torch.int8)


def _span(x: Tensor, scheme: GroupScheme) -> tuple[Tensor, Tensor, Tensor]:
    """Codes ``[n, groups, size]``, scales and zeros of groups spanned from least to greatest."""
    low, high = x.aminmax(dim=2)
    low, high = low.clamp_(max=0), high.clamp_(min=0)
    scales = (high - low) / _on(x, scheme.highest - scheme.lowest)
    usable = scales > 0
    divisor = torch.where(usable, scales, 1)
    zeros = (scheme.lowest - low / divisor).round_().clamp_(scheme.lowest, scheme.highest)
    zeros = torch.where(usable, zeros, 0).nan_to_num_(nan=0.0)
    codes = (x / divisor[:, :, None]).round_().add_(zeros[:, :, None]).nan_to_num_(nan=0.0)
    codes = codes.clamp_(scheme.lowest, scheme.highest)
    codes = torch.where(usable[:, :, None], codes, 0).to(torch.int8)
    return codes, scales, zeros.to(torch.int8)
