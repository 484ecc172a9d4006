"""Gram matrices: sums of the products of all pairs of columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu import native
from penstock.errors import ConfigError
from penstock.models.spec import DType

F32 = NDArray[np.float32]


class Gram:
    """Adds ``rows.T @ rows`` to sums, on threads of its own, by native code where there is some.

    Where ``dtype`` is bfloat16, native code rounds rows to it, as it does before weights of that
    type multiply them, and sums their products in float32; of other types rows stay float32, as
    they do without native code. The bits of native sums do not depend on the number of threads.
    """

    def __init__(self, dtype: DType = "float32", threads: int = 1) -> None:
        try:
            module = native.load()
        except ConfigError:
            self._native = None
            return
        elem = "bfloat16" if dtype == "bfloat16" else "float32"
        self._native = module.Gram(threads, elem)

    def add(self, rows: F32, sums: F32) -> None:
        """Add ``rows`` ``[tokens, k]``, whose columns are neighbours in memory, to ``sums``
        ``[k, k]``, contiguous. What lies above the diagonal is right only once :meth:`mirror` has
        been called."""
        if self._native is None:
            sums += rows.T @ rows
        else:
            self._native.add(rows, sums)

    def mirror(self, sums: F32) -> None:
        """Write what lies above the diagonal of ``sums``."""
        if self._native is None:
            return
        block = self._native.block
        for end in range(block, len(sums), block):
            first = end - block
            sums[first:end, end:] = sums[end:, first:end].T
