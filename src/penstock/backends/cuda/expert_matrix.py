"""The matrices of a layer's experts on the GPU, and their products: ``plan.ops.ExpertLinear``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.cuda.kernels import expert_product as grouped
from penstock.backends.cuda.kernels.expert_product import RowsByExpert
from penstock.backends.cuda.kernels.tiles import Tile, row_step
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.matrix import Matrix, Shape, make_matrix
from penstock.backends.cuda.op_storage import whole_columns
from penstock.backends.cuda.program import ELEMENTS
from penstock.backends.cuda.workspace import Workspace
from penstock.interface.executor import Limits
from penstock.models.spec import Gating
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant import LatticeScheme

_MOST_MARKS = 2**31
"""Scales and zero points of all experts are counted in int32."""


@dataclass(frozen=True)
class ExpertShape(Shape):
    """Dimensions of one expert's matrix, and of their product: ``max_rows`` counts a step's tokens,
    each of which has ``times`` rows of out."""

    experts: int = 1
    times: int = 1
    x_times: int = 1
    """Rows of out that are made of one row of x: all of a token, or one."""


class ExpertMatrix:
    """The matrices of experts, one behind the other: one matrix to fill, of which a row of x is
    multiplied by its expert's rows alone.

    A row has the bits of a plain product with its expert's matrix (``matrix.Matrix``). What a
    product needs of other rows is which of them share a tile with it; experts without rows are not
    read.
    """

    def __init__(
        self, store: Matrix, shape: ExpertShape, x_dtype: torch.dtype, workspace: Workspace
    ) -> None:
        """``store`` has the rows of all experts."""
        self.store, self.shape = store, shape
        self._x_dtype, self._workspace = x_dtype, workspace
        self._tiles: dict[int, Tile] = {}
        if store.weights.scales is not None and store.weights.scales.numel() >= _MOST_MARKS:
            raise ValueError("the experts of a layer have too many scales")
        workspace.reserve(grouped.scratch(store.weights, shape, x_dtype, workspace.capability))

    @property
    def weights(self) -> Weights:
        return self.store.weights

    @property
    def nbytes(self) -> int:
        """Device memory of the weights, padding included; scratch is the workspace's."""
        return self.store.nbytes

    def first_row(self, expert: int) -> int:
        """Return the row of ``store`` where a matrix begins."""
        return expert * self.shape.weight_rows

    def tile(self, rows: int) -> Tile:
        """Return the tile of a product for ``rows`` tokens."""
        step = row_step(rows)
        if step not in self._tiles:
            at = self._workspace.capability
            tile = grouped.tile_of(self.weights, self.shape, self._x_dtype, step, at)
            self._tiles[step] = tile
        return self._tiles[step]

    def product(
        self,
        x: Tensor,
        by_expert: RowsByExpert,
        out: Tensor,
        bias: Tensor | None,
        gated: Gating | None,
    ) -> None:
        """Compute ``plan.ops.ExpertLinear``: x ``[T, k]`` or ``[times * T, k]``, as ``x_times``
        says, and out ``[times * T, n]``, elements of a row adjacent; bias float32
        ``[experts * weight_rows]``. ``gated`` is given if and only if the shape is gated."""
        shape, tokens = self.shape, len(by_expert.ids)
        rows = tokens * shape.times
        if out.shape != (rows, shape.n) or x.shape != (rows // shape.x_times, shape.k):
            raise ValueError(
                f"x {tuple(x.shape)} and out {tuple(out.shape)} are not those of {tokens} tokens "
                f"with {shape.times} experts each, of n {shape.n} and k {shape.k}"
            )
        if tokens > shape.max_rows or (gated is not None) != shape.gated:
            raise ValueError("the matrix was made for fewer tokens, or another gate")
        tile = self.tile(tokens)
        grouped.expert_product(
            self.weights, shape, tile, x, by_expert, out, bias, gated, self._workspace
        )


def expert_matrix(
    op: ops.ExpertLinear, plan: Plan, limits: Limits, workspace: Workspace
) -> ExpertMatrix:
    """Return the empty matrices of ``op``, to be filled part by part. Raises ValueError where they
    are too large."""
    if isinstance(op.scheme, LatticeScheme):
        raise ValueError(f"no GPU kernel has experts in {op.scheme}")
    x, ids = plan.buffers[op.x], plan.buffers[op.ids]
    most = (limits.max_tokens, limits.max_selected_rows, limits.max_logit_rows)
    shape = ExpertShape(
        n=op.n,
        k=op.k,
        max_rows=ids.rows.count(*most),
        gated=op.gated is not None,
        of=whole_columns(op, plan),
        experts=plan.weights[op.parts[0].weight].shape[0],
        times=ids.cols,
        x_times=ids.cols // (x.rows.times // ids.rows.times),
    )
    x_dtype = ELEMENTS[x.element]
    store = make_matrix(
        Shape(shape.experts * shape.weight_rows, op.k, 1),
        plan.weight_dtype,
        op.scheme,
        workspace,
        x_dtype,
        weight_only=op.weight_only,
    )
    return ExpertMatrix(store, shape, x_dtype, workspace)
