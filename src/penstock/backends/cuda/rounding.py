"""Rounding of weights on the device: ``quant.quantize`` and ``quant.quantize_to_grid``, bit by bit.

Elementwise float32 additions, divisions and roundings, and minima and maxima: the same numbers on
every device. Callers pass slices of rows (:func:`slices`), which bounds the scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from penstock.quant.grid import LARGEST_STEP, ORIGINS
from penstock.quant.hadamard import block_of, signs
from penstock.quant.scheme import GridScheme, GroupScheme

SLICE = 1 << 22
"""Elements rounded at a time. At most about 30 bytes an element are in use: 120 MiB."""

_TINY = torch.finfo(torch.float32).tiny


def slices(rows: int, k: int) -> Iterator[slice]:
    """Slices of ``rows`` rows of ``k`` columns, of ``SLICE`` elements or one row at least."""
    step = max(1, SLICE // max(k, 1))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def round_to_grid(
    matrix: Tensor, scheme: GridScheme, transformed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes int8 ``[n, k]``, windows uint8 ``[n, groups]`` (none in 8 bits), scales ``[n]``.

    As :class:`penstock.quant.GridTensor` has them; last, a bool ``[]``: all of ``matrix`` is
    finite. If it is not, the others mean nothing.
    """
    x = _transform(matrix.float()) if transformed else matrix.float()
    n, k = x.shape
    finite = torch.isfinite(x).all()
    most = x.abs().amax(dim=1)
    scales = most / _on(x, 127)
    scales = torch.where(scales < _TINY, 0, scales)
    nil = (scales == 0)[:, None]
    on_grid = torch.where(nil, 0, x / torch.where(nil, 1, scales[:, None]))
    if scheme.bits == 8:
        codes = on_grid.round_().clamp_(-127, 127).to(torch.int8)
        return codes, torch.empty((n, 0), dtype=torch.uint8, device=x.device), scales, finite
    size = scheme.columns
    groups = -(-k // size)
    padded = torch.nn.functional.pad(on_grid, (0, groups * size - k))
    codes, windows = _fit(padded.view(n, groups, size))
    codes = torch.where(nil[:, :, None], 0, codes).view(n, -1)[:, :k]
    return codes, torch.where(nil, 0, windows), scales, finite


def _on(x: Tensor, divisor: float) -> Tensor:
    """``divisor`` on x's device: by a number of Python torch multiplies with its reciprocal."""
    return torch.full((), divisor, dtype=torch.float32, device=x.device)


def _transform(x: Tensor) -> Tensor:
    """``penstock.quant.hadamard.transform_weights`` of float32 rows."""
    block, distance = block_of(x.shape[1]), 1
    y = x.reshape(-1, block) * torch.from_numpy(signs(block)).to(x.device)
    while distance < block:
        first, second = y.view(len(y), -1, 2, distance).unbind(2)
        y = torch.stack((first + second, first - second), dim=2).view(-1, block)
        distance *= 2
    return y.view(x.shape)


def _fit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes int8 and windows uint8 of points ``[n, groups, columns]``."""
    low, high = x.aminmax(dim=2)
    low, high = low.clamp_(max=0), high.clamp_(min=0)
    span = high - low
    middle = torch.where(span > 0, (-low * 15 / torch.where(span > 0, span, 1)).round_(), 8.0)
    least = torch.full_like(low, torch.inf)
    codes, windows = torch.zeros_like(x, dtype=torch.int8), torch.zeros_like(low, dtype=torch.uint8)
    for further in (-1, 0, 1):
        origin = (middle + further).clamp_(*ORIGINS)
        reaching = torch.maximum(-low / origin, high / (15 - origin))
        cover = reaching.ceil_().clamp_(1, LARGEST_STEP)
        for finer in (0, 1, 2):
            step = (cover - finer).clamp_(min=1)
            u, error = _codes(x, step, origin)
            better = error < least
            least = torch.where(better, error, least)
            codes = torch.where(better[:, :, None], u, codes)
            windows = torch.where(better, (step - 1 + 16 * origin).to(torch.uint8), windows)
    return codes, windows


def _codes(x: Tensor, step: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of points by one window a group, and the sums of their squared errors."""
    first = torch.maximum(-origin, -(_on(x, 128) / step).floor())[:, :, None]
    last = torch.minimum(15 - origin, (_on(x, 127) / step).floor())[:, :, None]
    rounded = (x * (_on(x, 1) / step)[:, :, None]).round_()
    rounded = torch.minimum(torch.maximum(rounded, first), last)
    error = (x - rounded * step[:, :, None]).square_()
    while error.shape[2] > 1:
        one, other = error.chunk(2, dim=2)
        error = one + other
    return (rounded + origin[:, :, None]).to(torch.int8), error[:, :, 0]


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
