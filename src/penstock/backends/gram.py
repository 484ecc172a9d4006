"""Gram matrices ``x.T @ x``, which calibration sums over all samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu import native
from penstock.errors import ConfigError
from penstock.models.spec import DType

F32 = NDArray[np.float32]


class Gram:
    """Accumulates ``rows.T @ rows``, with native kernels where they are built, else with NumPy.

    With ``dtype`` bfloat16 the native kernels round rows to bfloat16, as products with weights of
    that type do, and accumulate in float32. With any other type, and with NumPy, rows stay float32.
    Native sums are bitwise the same for any number of ``threads``, which are a pool of its own.
    Scratch memory for up to 2,048 rows is kept between calls, so one thread at a time may call it.
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
        """Add ``rows.T @ rows`` to ``sums`` in place.

        ``rows`` are float32 ``[tokens, k]``, each row contiguous; ``sums`` are float32 ``[k, k]``
        in C order. The upper triangle of ``sums`` is valid only after :meth:`mirror`. The native
        kernels raise ValueError where shapes do not match or a row is not contiguous.
        """
        if self._native is None:
            sums += rows.T @ rows
        else:
            self._native.add(rows, sums)

    def mirror(self, sums: F32) -> None:
        """Complete the upper triangle of ``sums`` from the lower one."""
        if self._native is None:
            return
        block = self._native.block
        for end in range(block, len(sums), block):
            first = end - block
            sums[first:end, end:] = sums[end:, first:end].T
