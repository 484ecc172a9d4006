"""Weights as differentiable functions of what stays continuous in them once they are rounded.

Whatever is stored in few bits is used as it is stored, and gradients pass as if it were not
rounded (the straight-through estimator of Bengio et al., arXiv 1308.3432). Scales of codes that
change have the gradients of LSQ (Esser et al., Learned Step Size Quantization, arXiv 1902.08153).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from penstock.interface.adjustable import (
    Adjustable,
    RowValues,
    ScaledPoints,
    SparseValues,
    Stored,
    Vector,
)

SCALE_RATE: Final = 1e-3
"""Learning rates: of scales, of their logarithms, and of values, as a part of their size;"""
ZERO_RATE: Final = 5e-3
"""of zeros, in steps of codes;"""
CODE_RATE: Final = 2e-3
"""of weights whose codes may change, in steps of codes;"""
VECTOR_RATE: Final = 5e-4
"""of norms and biases, as a part of their size."""
_INSIDE: Final = 0.45
"""How far from the middle of its code, in steps, a weight begins at most: rounding to nearest finds
the code that a method has chosen."""
_RANGE: Final = 4.0
"""Logarithms of scales change by so much at most."""


@dataclass(frozen=True)
class Rated:
    """A parameter and its learning rate."""

    parameter: nn.Parameter
    rate: float


class Weight(nn.Module):
    """A weight that is made anew in each step."""

    def rated(self) -> Iterator[Rated]:
        """The parameters, always in the same order."""
        raise NotImplementedError

    def made(self) -> Adjustable:
        """What it has become, as it is stored."""
        raise NotImplementedError


def weight_of(initial: Adjustable) -> Weight:
    """The weight that begins as ``initial``."""
    match initial:
        case ScaledPoints():
            return _Scaled(initial)
        case RowValues():
            return _OfRows(initial)
        case _:
            return _Plain(initial)


def _through(values: Tensor, stored: Stored) -> Tensor:
    """``values`` as they are stored, with the gradients of values that are not."""
    kept = torch.from_numpy(stored(values.detach().numpy()))
    return values + (kept - values.detach())


def _size(values: np.ndarray[Any, Any]) -> float:
    """The root of the mean square; 1 of zeros."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean())) or 1.0


class _Scaled(Weight):
    """Scales, as factors of what they were; zeros; and weights, where codes may change."""

    def __init__(self, initial: ScaledPoints) -> None:
        super().__init__()
        self._initial = initial
        points = initial.points.reshape(-1)
        behind = -len(points) % initial.run
        self._points = torch.from_numpy(np.pad(points, (0, behind)).reshape(-1, initial.run))
        self._scales = torch.from_numpy(np.array(initial.scales, np.float32))
        zeros = torch.from_numpy(initial.zeros.astype(np.float32))
        self._zeros = zeros
        self.logarithms = nn.Parameter(torch.zeros_like(self._scales))
        self.zeros = nn.Parameter(zeros.clone()) if initial.shifts else None
        self.steps: nn.Parameter | None = None
        self._fixed: Tensor | None = None
        if initial.wanted is not None:
            wanted = np.pad(initial.wanted.reshape(-1), (0, behind)).reshape(self._points.shape)
            middles = self._points.float() - zeros[:, None]
            inside = torch.from_numpy(wanted) / self._scales[:, None]
            steps = torch.clamp(inside, middles - _INSIDE, middles + _INSIDE)
            if initial.sparse:
                self._fixed = middles == 0
                steps = torch.where(self._fixed, middles, steps)
            self.steps = nn.Parameter(steps)
        columns = initial.columns
        inverse = None if columns is None else np.argsort(columns)
        self._places = None if inverse is None else torch.from_numpy(inverse)

    def rated(self) -> Iterator[Rated]:
        yield Rated(self.logarithms, SCALE_RATE)
        if self.zeros is not None:
            yield Rated(self.zeros, ZERO_RATE)
        if self.steps is not None:
            yield Rated(self.steps, CODE_RATE)

    def _stored_scales(self) -> Tensor:
        factors = torch.exp(torch.clamp(self.logarithms, -_RANGE, _RANGE))
        return _through(self._scales * factors, self._initial.stored)

    def _stored_zeros(self) -> Tensor:
        if self.zeros is None:
            return self._zeros
        highest = self._initial.highest
        return _through(self.zeros, lambda zeros: np.clip(np.rint(zeros), 0, highest))

    def forward(self) -> Tensor:
        """The weight ``[n, k]``."""
        scales, zeros = self._stored_scales(), self._stored_zeros()
        if self.steps is None:
            made = _Product.apply(self._points, scales, zeros)  # type: ignore[no-untyped-call]
        else:
            weights = self.steps * self._scales[:, None]
            assert self._initial.highest is not None
            highest = self._initial.highest
            made = _Codes.apply(  # type: ignore[no-untyped-call]
                weights, scales, zeros, highest, self._fixed
            )
        assert isinstance(made, Tensor)
        n, k = self._initial.points.shape
        matrix = made.reshape(-1)[: n * k].view(n, k)
        return matrix if self._places is None else matrix[:, self._places]

    @torch.no_grad()
    def made(self) -> ScaledPoints:
        scales, zeros = self._stored_scales(), self._stored_zeros()
        points = self._initial.points
        if self.steps is not None:
            assert self._initial.highest is not None
            weights = self.steps * self._scales[:, None]
            codes, _ = _codes(weights, scales, zeros, self._initial.highest)
            points = codes.to(torch.uint8).numpy().reshape(-1)[: points.size].reshape(points.shape)
        whole = zeros.numpy().astype(np.int32)
        return replace(self._initial, points=points, scales=scales.numpy(), zeros=whole)


class _Product(torch.autograd.Function):
    """``(points - zeros) * scales``: points ``[runs, run]``, scales and zeros ``[runs]``. Only the
    points, of a byte each where they are codes, are held for the gradients."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        ctx.save_for_backward(points, scales, zeros)
        made = points.to(torch.float32, copy=True)  # and no other array: new ones are slow
        return made.sub_(zeros[:, None]).mul_(scales[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        points, scales, zeros = ctx.saved_tensors
        (grad,) = grads
        parts = points.to(torch.float32, copy=True)
        of_scales = parts.sub_(zeros[:, None]).mul_(grad).sum(dim=1)
        of_zeros = -grad.sum(dim=1) * scales if ctx.needs_input_grad[2] else None
        return None, of_scales, of_zeros


class _Codes(torch.autograd.Function):
    """The nearest points of weights ``[runs, run]``, with scales and zeros ``[runs]``; where
    ``fixed``, bool ``[runs, run]``, weights do not change."""

    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        scales: Tensor,
        zeros: Tensor,
        highest: int,
        fixed: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(weights, scales, zeros)
        ctx.highest, ctx.fixed = highest, fixed
        codes, _ = _codes(weights, scales, zeros, highest)
        return (codes - zeros[:, None]) * scales[:, None]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        weights, scales, zeros = ctx.saved_tensors
        (grad,) = grads
        codes, inside = _codes(weights, scales, zeros, ctx.highest)
        points = codes - zeros[:, None]
        exact = torch.where(inside, weights / scales[:, None], torch.zeros(()))
        of_scales = ((points - exact) * grad).sum(dim=1)
        outside = torch.where(inside, torch.zeros(()), grad)
        of_zeros = -outside.sum(dim=1) * scales if ctx.needs_input_grad[2] else None
        of_weights = torch.where(inside, grad, torch.zeros(()))
        if ctx.fixed is not None:
            of_weights = torch.where(ctx.fixed, torch.zeros(()), of_weights)
        return of_weights, of_scales, of_zeros, None, None


def _codes(weights: Tensor, scales: Tensor, zeros: Tensor, highest: int) -> tuple[Tensor, Tensor]:
    """The nearest codes, ties to even, and where the nearest there could be is one of them."""
    free = torch.round(weights / scales[:, None]) + zeros[:, None]
    codes = torch.clamp(free, 0, highest)
    return codes, codes == free


class _OfRows(Weight):
    """Values of rows, and weights apart."""

    def __init__(self, initial: RowValues) -> None:
        super().__init__()
        self._initial = initial
        self._codes = torch.from_numpy(np.array(initial.codes))
        self._apart = torch.from_numpy(np.array(initial.apart))
        self.values = nn.Parameter(torch.from_numpy(np.array(initial.values, np.float32)))
        self.outliers = nn.Parameter(torch.from_numpy(np.array(initial.outliers, np.float32)))

    def rated(self) -> Iterator[Rated]:
        yield Rated(self.values, SCALE_RATE * _size(self._initial.values))
        if self.outliers.numel():
            yield Rated(self.outliers, SCALE_RATE * _size(self._initial.outliers))

    def forward(self) -> Tensor:
        """The weight ``[n, k]``."""
        values = _through(self.values, self._initial.stored)
        matrix = torch.gather(values, 1, self._codes.long())
        if not self.outliers.numel():
            return matrix
        return matrix.masked_scatter(self._apart, _through(self.outliers, self._initial.stored))

    @torch.no_grad()
    def made(self) -> RowValues:
        stored = self._initial.stored
        values, outliers = stored(self.values.numpy()), stored(self.outliers.numpy())
        return replace(self._initial, values=values, outliers=outliers)


class _Plain(Weight):
    """Floats; zeros of sparse matrices stay."""

    def __init__(self, initial: SparseValues | Vector) -> None:
        super().__init__()
        self._initial = initial
        values = torch.from_numpy(np.array(initial.values, np.float32))
        self._kept = values != 0 if isinstance(initial, SparseValues) else None
        self.values = nn.Parameter(values)

    def rated(self) -> Iterator[Rated]:
        rate = SCALE_RATE if isinstance(self._initial, SparseValues) else VECTOR_RATE
        yield Rated(self.values, rate * _size(self._initial.values))

    def _stored(self) -> Tensor:
        values = _through(self.values, self._initial.stored)
        return values if self._kept is None else torch.where(self._kept, values, torch.zeros(()))

    def forward(self) -> Tensor:
        """The weight, of the shape that it has."""
        return self._stored()

    @torch.no_grad()
    def made(self) -> SparseValues | Vector:
        return replace(self._initial, values=self._stored().numpy())
