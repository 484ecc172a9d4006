"""Codebooks of rows, in the format of :mod:`penstock.models.squeezellm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.models.row_codebooks import RowCodebooks
from penstock.models.spec import DType
from penstock.models.squeezellm import METHOD
from penstock.quantize.forms.form import Arrays
from penstock.quantize.forms.words import words
from penstock.quantize.grid import F32
from penstock.quantize.squeezellm import CodebookRows, squeezed
from penstock.weights.tensor_file import NUMPY_DTYPES


@dataclass(frozen=True)
class StoredCodebooks:
    """A matrix, and how it is stored."""

    matrix: CodebookRows
    form: Codebooks

    def dequantize(self) -> F32:
        """What the codes stand for, ``[n, k]``."""
        return self.matrix.dequantize()

    def arrays(self) -> Arrays:
        """The tensors, by what follows the module's name and a dot."""
        own, dtype = self.matrix, NUMPY_DTYPES[self.form.dtype]
        counts = own.outliers.sum(axis=1)
        return {
            "codes": words(own.codes, self.form.stored.bits),
            "codebook": own.codebook.astype(dtype),
            "outlier_rows": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            "outlier_columns": np.nonzero(own.outliers)[1].astype(np.int32),
            "outlier_values": own.values.astype(dtype),
        }


@dataclass(frozen=True)
class Codebooks:
    """Codebooks, and floats beside them, of the checkpoint's own type."""

    stored: RowCodebooks
    dtype: DType

    group_size: None = None

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        return {
            "quant_method": METHOD,
            "bits": self.stored.bits,
            "outliers": self.stored.outliers,
            "modules_to_not_convert": list(floats),
        }

    def of_joined(self, matrices: Sequence[F32]) -> Codebooks:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> StoredCodebooks:
        """Round with the same sensitivity to each weight."""
        return self.weighted(matrix, np.ones((1, 1), np.float32))

    def weighted(self, matrix: F32, sensitivity: F32) -> StoredCodebooks:
        """Round with a sensitivity to each weight, which broadcasts to ``[n, k]``."""
        n, k = matrix.shape
        count = self.stored.count((n, k))
        made = squeezed(matrix, sensitivity, self.stored.bits, count, NUMPY_DTYPES[self.dtype])
        return StoredCodebooks(made, self)
