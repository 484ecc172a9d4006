"""The ways in which matrices are rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.quantize.awq import clipped_fit, scale_factors
from penstock.quantize.forms.form import Coded, Form
from penstock.quantize.forms.integers import Integers
from penstock.quantize.gptq import Order, gptq
from penstock.quantize.grid import F32, IntegerMatrix
from penstock.quantize.hessian import Hessian
from penstock.quantize.smoothquant import smoothing_factors


class Method(Protocol):
    """Rounds one matrix at a time to a form."""

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> Form: ...

    @property
    def calibrated(self) -> bool:
        """Whether it asks what matrices multiply."""
        ...

    @property
    def by_index(self) -> bool:
        """Whether groups may be of columns that are no neighbours."""
        ...

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        """What the columns of matrices ``[n, k]``, which multiply the same, should be multiplied
        by: above 0, ``[k]``. None: they stay as they are."""
        ...

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        """The matrix ``[n, k]``, whose name is for messages, in the form. Raises WeightError where
        it cannot be."""
        ...


class _Unbalanced:
    """A method that leaves columns as they are."""

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return None


@dataclass(frozen=True)
class RoundToNearest(_Unbalanced):
    """Every weight becomes the nearest value of its group."""

    form: Form

    name = "rtn"
    calibrated = False
    by_index = False

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        return self.form.round(matrix, name)


@dataclass(frozen=True)
class Gptq(_Unbalanced):
    """Columns make up for the errors of those before them; arguments are those of
    :func:`~penstock.quantize.gptq.gptq`."""

    form: Integers
    order: Order = "static"
    damping: float = 0.01

    name = "gptq"
    calibrated = True

    @property
    def by_index(self) -> bool:
        return self.order == "group"

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        assert hessian is not None
        sums = hessian.sums(name)
        made = gptq(matrix, sums, self.form.grid, self.order, self.damping, name)
        return self.form.coded(made, name)


@dataclass(frozen=True)
class Awq:
    """Columns that multiply large inputs become larger, and what spans a group smaller, as far as
    that lowers the error (:mod:`~penstock.quantize.awq`)."""

    form: Integers

    name = "awq"
    calibrated = True
    by_index = False

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return scale_factors(matrices, self.form.grid, hessian)

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        assert hessian is not None
        n, k = matrix.shape
        grid = self.form.grid
        grouped = matrix.reshape(n, grid.groups(k), -1)
        scales, zeros = clipped_fit(grouped, grid, hessian.sums(name))
        codes = grid.round(grouped, scales[..., None], zeros[..., None]).reshape(n, k)
        return self.form.coded(IntegerMatrix(grid, codes, scales, zeros), name)


@dataclass(frozen=True)
class SmoothQuant:
    """Columns of inputs become of more equal size, since inputs are rounded, too
    (:mod:`~penstock.quantize.smoothquant`)."""

    form: Integers

    name = "smoothquant"
    calibrated = True
    by_index = False

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return smoothing_factors(matrices, self.form.grid, hessian)

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        return self.form.round(matrix, name)
