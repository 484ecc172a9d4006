"""The methods of 2:4 pruning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.quantize.forms.form import Coded
from penstock.quantize.forms.integers import Integers
from penstock.quantize.forms.sparse import SparseFloats
from penstock.quantize.grid import F32
from penstock.quantize.hessian import Hessian
from penstock.quantize.methods import Apart
from penstock.quantize.sparsity import CodeColumns, FloatColumns, by_magnitude, sparsegpt


@dataclass(frozen=True)
class Magnitude(Apart):
    """The two smallest of each four weights become 0; the others are rounded to nearest."""

    form: SparseFloats | Integers

    name = "magnitude"
    calibrated = False

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        return self.form.round(np.where(by_magnitude(matrix), matrix, np.float32(0)), name)


@dataclass(frozen=True)
class SparseGpt(Apart):
    """Weights of the least saliency become 0, and columns compensate for the errors of those before
    them (:mod:`~penstock.quantize.sparsity`)."""

    form: SparseFloats | Integers
    damping: float = 0.01

    name = "sparsegpt"
    calibrated = True

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        if hessian is None:
            return Magnitude(self.form).rounded(matrix, None, name)
        n, k = matrix.shape
        sums, damping = hessian.sums(name), hessian.damping(self.damping)
        if isinstance(self.form, Integers):
            codes = CodeColumns((n, k), self.form.grid)
            sparsegpt(matrix, sums, codes, damping, name)
            return self.form.coded(codes.matrix, name)
        floats = FloatColumns((n, k), self.form.dtype)
        sparsegpt(matrix, sums, floats, damping, name)
        return self.form.made(floats.matrix)
