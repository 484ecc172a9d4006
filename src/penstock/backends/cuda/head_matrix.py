"""Matrices of heads on the GPU and their products: ``plan.ops.HeadLinear``."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from penstock.backends.cuda.kernels.head_linear import head_linear
from penstock.backends.cuda.kernels.launch import tile_of
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.matrix import Shape
from penstock.backends.cuda.weights import TORCH_DTYPES
from penstock.backends.cuda.workspace import Workspace
from penstock.models.spec import DType
from penstock.plan.ops import HeadLinear

_PADDED = 128
"""Rows are padded to a multiple of this many columns."""


class HeadMatrix:
    """A matrix ``[n, k]`` for each head, which lie one behind the other however they are stored.

    Made on torch's ``meta`` device it takes no memory and tells the bytes that it takes elsewhere.
    """

    def __init__(
        self,
        op: HeadLinear,
        max_rows: int,
        dtype: DType,
        workspace: Workspace,
        x_dtype: torch.dtype,
    ) -> None:
        self.shape = Shape(op.n, op.k, max_rows)
        padded = -(-op.k // _PADDED) * _PADDED
        self._w = torch.zeros(
            (op.heads, op.n, padded), dtype=TORCH_DTYPES[dtype], device=workspace.device
        )
        self.weights = Weights("heads", self._w, padded, bits=self._w.dtype.itemsize * 8)
        self._capability = workspace.capability
        self._transposed = op.transposed
        self._x_dtype = x_dtype

    @property
    def nbytes(self) -> int:
        """Device memory, padding included."""
        return self._w.nbytes

    def tile(self, rows: int) -> Tile:
        """Return the tile of a head's product with ``rows`` rows."""
        tile = tile_of(self.weights, self.shape, self._x_dtype, rows, self._capability)
        return replace(tile, splits=1, length=self.weights.padded, parallel=False)

    def fill(self, weight: Tensor) -> None:
        """Keep the op's weight, of any floating type."""
        heads, n, k = len(self._w), self.shape.n, self.shape.k
        if self._transposed:
            matrices = weight.view(heads, k, n).transpose(1, 2)
        else:
            matrices = weight.view(heads, n, k)
        self._w[:, :, :k] = matrices

    def product(self, x: Tensor, out: Tensor) -> None:
        """Compute ``plan.ops.HeadLinear``: x ``[rows, heads * k]``, out ``[rows, heads * n]``."""
        head_linear(x, self._w, out, self.shape.k, self.tile(len(x)))
