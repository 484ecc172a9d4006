"""SqueezeLLM as a method: which sensitivity it is that codebooks are fitted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.forms.form import Coded
from penstock.quantize.grid import F32
from penstock.quantize.hessian import Hessian
from penstock.quantize.methods import Apart


class Gradients(Protocol):
    """Squared gradients of the loss by each weight."""

    def of(self, name: str) -> F32:
        """Those of a matrix ``[n, k]``, summed over the samples. Raises WeightError where they are
        not finite."""
        ...


@dataclass(frozen=True)
class SqueezeLlm(Apart):
    """Codebooks of rows, and some weights in floats (:mod:`~penstock.quantize.squeezellm`).

    How sensitive the model is to a weight: the squared gradient of its loss, as in the paper, or
    without ``gradients`` the diagonal of the Hessian of the matrix's outputs, which is the same for
    all rows.
    """

    form: Codebooks
    gradients: Gradients | None = None

    name = "squeezellm"
    calibrated = True

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        if self.gradients is not None:
            return self.form.weighted(matrix, self.gradients.of(name))
        if hessian is None:
            return self.form.round(matrix, name)
        diagonal = np.diagonal(hessian.sums(name)) / np.float32(max(hessian.tokens, 1))
        return self.form.weighted(matrix, diagonal[None])
