"""Native products of quantized weights, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from penstock.backends.reference.numerics import activate
from penstock.models.spec import Activation
from penstock.quant import (
    GridScheme,
    GridTensor,
    GroupScheme,
    GroupTensor,
    quantize,
    quantize_to_grid,
)
from support.native_arrays import as_bytes

Gate = Activation | Literal["none"]
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class QuantizedProduct:
    """Parts ``[n, k]`` of one scheme, joined, or gate and up; bias float32 ``[all n]``."""

    parts: tuple[GridTensor | GroupTensor, ...]
    gate: Gate = "none"
    bias: np.ndarray | None = None
    weight_only: bool = False

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        sizes: tuple[int, ...],
        k: int,
        scheme: GridScheme | GroupScheme,
        gate: Gate = "none",
        bias: bool = False,
        weight_only: bool = False,
    ) -> QuantizedProduct:
        """Weights that are not centred at zero, so that zero points matter."""
        parts = tuple(
            round_to(scheme, (rng.standard_normal((n, k)) + 0.4).astype(np.float32), weight_only)
            for n in sizes
        )
        shift = rng.standard_normal(sum(sizes)).astype(np.float32) if bias else None
        return cls(parts, gate, shift, weight_only)

    def run(
        self,
        module: Any,
        x: np.ndarray,
        threads: int = 1,
        out_elem: str = "float32",
        sparse: bool = False,
    ) -> np.ndarray:
        """The native result in ``out_elem``, ``[m, n]``; of groups in ``sparse`` panels, if so."""
        total = sum(len(p.codes) for p in self.parts)
        n = total if self.gate == "none" else total // 2
        out = np.full((len(x), n * np.dtype(DTYPES[out_elem]).itemsize), 0xA5, np.uint8)
        options: dict[str, Any] = {
            "bits": self.parts[0].scheme.bits,
            "bias": self.bias,
            "gate": self.gate,
            "x": as_bytes(x),
            "x_elem": x.dtype.name,
            "out": out.reshape(-1),
            "out_elem": out_elem,
            "weight_only": self.weight_only,
            "threads": threads,
        }
        grids = [p for p in self.parts if isinstance(p, GridTensor)]
        groups = [p for p in self.parts if isinstance(p, GroupTensor)]
        if grids:
            module.grid_linear(parts=[(p.codes, p.windows, p.scales) for p in grids], **options)
        else:
            group = groups[0].scheme.group_size or 0
            module.int_linear(
                parts=[(p.codes, p.scales, p.zeros) for p in groups],
                group=group,
                sparse=sparse,
                **options,
            )
        return out.view(DTYPES[out_elem])


def round_to(
    scheme: GridScheme | GroupScheme, matrix: np.ndarray, weight_only: bool = False
) -> GridTensor | GroupTensor:
    if isinstance(scheme, GridScheme):
        return quantize_to_grid(matrix, scheme, transformed=not weight_only)
    return quantize(matrix, scheme)


def assert_within(
    got: np.ndarray, product: QuantizedProduct, sums: np.ndarray, error: np.ndarray
) -> None:
    """``got`` is what ``sums`` (with bias, ``[m, all n]`` in float64) come to.

    ``error`` bounds those of the native sums; behind a gate it grows by the gate's slope.
    """
    expected = sums
    if product.gate != "none":
        n = len(product.parts[0].codes)
        gated = activate(sums[:, :n].astype(np.float32), product.gate).astype(np.float64)
        slope = 1.2 * error[:, :n] + 1e-5 * np.abs(gated) + 1e-7
        error = slope * np.abs(sums[:, n:]) + error[:, n:] * (np.abs(gated) + slope)
        expected = gated * sums[:, n:]
    np.testing.assert_array_less(np.abs(got.astype(np.float64) - expected), error)


def assert_rows_keep_to_themselves(
    module: Any, product: QuantizedProduct, x: np.ndarray, counts: Sequence[int]
) -> None:
    """Each row has the same bits on more threads, and in batches of so many rows at any place."""
    whole = product.run(module, x)
    assert np.array_equal(product.run(module, x, 2), whole)
    assert np.array_equal(product.run(module, x[:-1], 3), whole[:-1])
    for rows in counts:
        for first in sorted({0, (len(x) - rows) // 2, len(x) - rows}):
            if rows > 40 and first:
                continue
            part = product.run(module, x[first : first + rows], 1 + rows % 3)
            assert np.array_equal(part, whole[first : first + rows]), (rows, first)


def assert_bad_values_stay_in_their_row(
    module: Any, product: QuantizedProduct, x: np.ndarray, column: int
) -> None:
    """A value that is not finite makes its own row so, and no other."""
    clean, row = product.run(module, x, 2), len(x) // 2
    for value in (np.nan, np.inf, -np.inf):
        poisoned = x.copy()
        poisoned[row, column] = value
        got = product.run(module, poisoned, 2)
        assert not np.isfinite(got[row]).any()
        assert product.weight_only or np.isnan(got[row]).all()
        assert np.array_equal(np.delete(got, row, 0), np.delete(clean, row, 0))


def assert_narrow_output_is_rounded(module: Any, product: QuantizedProduct, x: np.ndarray) -> None:
    """Output in bfloat16 is that in float32, rounded."""
    wide = product.run(module, x).astype(ml_dtypes.bfloat16)
    assert np.array_equal(product.run(module, x, out_elem="bfloat16"), wide)
