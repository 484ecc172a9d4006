"""SqueezeLLM as a method: which sensitivity it is that codebooks are fitted by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from penstock.quantize.forms.codebooks import Codebooks
from penstock.quantize.forms.form import Coded
from penstock.quantize.grid import F32
from penstock.quantize.hessian import Hessian


class Gradients(Protocol):
    """Squared gradients of the loss by each weight."""

    def of(self, name: str) -> F32:
        """Those of a matrix ``[n, k]``, summed over the samples. Raises WeightError where they are
        not finite."""
        ...


@dataclass(frozen=True)
class SqueezeLlm:
    """Codebooks of rows, and some weights in floats (:mod:`~penstock.quantize.squeezellm`).

    How sensitive the model is to a weight: the squared gradient of its loss, as in the paper, or
    without ``gradients`` the diagonal of the Hessian of the matrix's outputs, which is the same for
    all rows.
    """

    form: Codebooks
    gradients: Gradients | None = None

    name = "squeezellm"
    calibrated = True
    by_index = False

    def of(self, module: str) -> Self:
        return self

    def of_joined(self, matrices: Sequence[F32]) -> Self:
        return self

    def factors(self, matrices: Sequence[F32], hessian: Hessian) -> F32 | None:
        return None

    def rounded(self, matrix: F32, hessian: Hessian | None, name: str) -> Coded:
        if self.gradients is not None:
            return self.form.weighted(matrix, self.gradients.of(name))
        assert hessian is not None
        diagonal = np.diagonal(hessian.sums(name)) / np.float32(max(hessian.tokens, 1))
        return self.form.weighted(matrix, diagonal[None])
