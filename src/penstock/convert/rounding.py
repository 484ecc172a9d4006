"""Rows of tensors as the bytes of their types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import ml_dtypes
import numpy as np

from penstock.convert.content import Values
from penstock.convert.importance import Floats
from penstock.errors import WeightError
from penstock.gguf.writing import NewTensor
from penstock.quant.encode import ENCODERS, MAX_VALUE, MatrixEncoder

_MAX_BF16: Final = float.fromhex("0x1.FEp127")


@dataclass(frozen=True)
class Rounding:
    """What rounds to blocks, and which columns count most."""

    encoder: MatrixEncoder
    weights: Mapping[str, Floats] = field(default_factory=dict)
    """What the columns of tensors count, as :meth:`Importance.weights` has it; those of others
    count as encoders choose."""

    def rounded(self, tensor: NewTensor, values: Values, matrix: int = 0) -> bytes:
        """Rows of a tensor, ``[rows, columns]``, as the bytes of its type; of a stack of matrices,
        those of the one with this index.

        Raises WeightError, naming the tensor, for values that the type cannot hold.
        """
        kind = tensor.type.name
        largest = max(values.max(initial=0), -values.min(initial=0))  # a NaN if there is one
        if not np.isfinite(largest):
            raise not_finite(tensor.name)
        if kind == "F32":
            return values.astype("<f4").tobytes()
        if kind == "BF16":
            halves = values.astype(ml_dtypes.bfloat16)
            if np.isinf(halves).any():
                raise WeightError(
                    f"{tensor.name} has values above {_MAX_BF16:.4g}, too large for BF16; take "
                    "type F32"
                )
            return halves.tobytes()
        if largest > MAX_VALUE:
            raise WeightError(
                f"{tensor.name} has values up to {float(largest):.4g} in magnitude, too large for "
                f"{kind}; take type BF16 or F32"
            )
        if kind == "F16":
            return values.astype("<f2").tobytes()
        assert kind in ENCODERS
        weights = self.weights.get(tensor.name)
        own = None if weights is None else weights[matrix]
        return self.encoder(kind, values, own).tobytes()


def not_finite(tensor: str) -> WeightError:
    """What is said of a tensor with a NaN or an infinity: files of no type are written of it, since
    their models would compute nothing."""
    return WeightError(
        f"{tensor} has values that are not finite, so that the model would compute nothing; "
        "download or make it again"
    )
