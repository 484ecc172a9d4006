"""The methods of quantization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from penstock.quantize.awq import clipped_fit, scale_factors
from penstock.quantize.forms.form import Coded, Form, Forms
from penstock.quantize.forms.integers import Integers
from penstock.quantize.forms.lattice import Lattice
from penstock.quantize.gptq import Order, gptq
from penstock.quantize.grid import F32
from penstock.quantize.hessian import Hessian
from penstock.quantize.smoothquant import smoothing_factors


class Methods(Protocol):
    """How the matrices of a checkpoint are quantized: all by one method, or some by others."""

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> Forms: ...

    @property
    def calibrated(self) -> bool:
        """Whether it needs the Hessians of calibration samples."""
        ...

    @property
    def by_index(self) -> bool:
        """Whether groups may be of columns that are not adjacent, so that an index is stored."""
        ...

    def of(self, module: str) -> Method:
        """The method for the matrix of a module."""
        ...


class Method(Methods, Protocol):
    """Rounds one matrix at a time to a form."""

    @property
    def form(self) -> Form: ...

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        """Positive factors ``[k]`` for the columns of matrices ``[n, k]`` that share an input,
        which is divided by them; None: columns stay as they are."""
        ...

    def of_joined(self, matrices: Sequence[F32]) -> Method:
        """The method for matrices that engines may multiply as one."""
        ...

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        """Quantize the matrix ``[n, k]``; ``name`` is for messages. Raises WeightError where the
        form has no room for its values, or the Hessian is of no use.

        Without a ``hessian``, where there were no samples or too few rows of them, it is rounded to
        nearest.
        """
        ...


class _Alike:
    """One method for all matrices."""

    def of(self, module: str) -> Self:
        return self


@dataclass(frozen=True)
class RoundToNearest(_Alike):
    """Every weight becomes the nearest value of its group."""

    form: Form

    name = "rtn"
    calibrated = False
    by_index = False

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return None

    def of_joined(self, matrices: Sequence[F32]) -> RoundToNearest:
        return replace(self, form=self.form.of_joined(matrices))

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        return self.form.round(matrix, name)


class Apart(_Alike):
    """A method whose matrices share nothing, and whose columns stay as they are."""

    @property
    def by_index(self) -> bool:
        return False

    def of_joined(self, matrices: Sequence[F32]) -> Self:
        return self

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return None


@dataclass(frozen=True)
class Gptq(Apart):
    """Columns compensate for the errors of those before them; arguments are those of
    :func:`~penstock.quantize.gptq.gptq`."""

    form: Integers
    order: Order = "static"
    damping: float = 0.01

    name = "gptq"
    calibrated = True

    @property
    def by_index(self) -> bool:
        return self.order == "group" and self.form.group_size is not None

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        grid = self.form.grid
        if hessian is None:
            nearest = self.form.round(matrix, name)
            if not self.by_index:
                return nearest
            k = matrix.shape[1]
            group_of = np.arange(k, dtype=np.int32) // (grid.group_size or k)
            return self.form.coded(replace(nearest.matrix, group_of=group_of), name)
        sums, damping = hessian.sums(name), hessian.damping(self.damping)
        return self.form.coded(gptq(matrix, sums, grid, self.order, damping, name), name)


@dataclass(frozen=True)
class Awq(Apart):
    """Columns with large inputs are scaled up, and groups clipped, as far as that lowers the error
    of the outputs (:mod:`~penstock.quantize.awq`)."""

    form: Integers

    name = "awq"
    calibrated = True

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return scale_factors(matrices, self.form.grid, hessian)

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        if hessian is None:
            return self.form.round(matrix, name)
        grid = self.form.grid
        grouped = grid.grouped(matrix)
        fit = clipped_fit(grouped, grid, hessian.sums(name))
        return self.form.coded(grid.matrix(grouped, *fit), name)


@dataclass(frozen=True)
class SmoothQuant(Apart):
    """Outlier channels of activations, which are quantized as well, are scaled down
    (:mod:`~penstock.quantize.smoothquant`)."""

    form: Integers

    name = "smoothquant"
    calibrated = True

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return smoothing_factors(matrices, self.form.grid, hessian)

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        return self.form.round(matrix, name)


@dataclass(frozen=True)
class Quip(Apart):
    """QuIP#: matrices are rotated, and columns compensate for the errors of those after them
    (:mod:`~penstock.quantize.forms.lattice`). ``damping`` is that of
    :func:`~penstock.quantize.ldlq.ldlq`."""

    form: Lattice
    damping: float = 0.01

    name = "quip"
    calibrated = True

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        if hessian is None:
            return self.form.round(matrix, name)
        damping = hessian.damping(self.damping)
        return self.form.rounded(matrix, hessian.sums(name), damping, name)
