"""Products of experts by the GPU's kernels, and the plain products that they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backends.cuda.expert_matrix import ExpertMatrix, ExpertShape
from penstock.backends.cuda.kernels.dispatch import dispatch
from penstock.backends.cuda.kernels.expert_product import RowsByExpert
from penstock.backends.cuda.kernels.tiles import STEP, most_tiles
from penstock.backends.cuda.matrix import Matrix, Shape, make_matrix
from penstock.backends.cuda.workspace import Workspace
from penstock.models.spec import DType, Gating
from penstock.quant import BlockTensor, QuantScheme

F32 = NDArray[np.float32]
Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Form:
    """What matrices are kept as, and what they multiply."""

    dtype: DType = "bfloat16"
    scheme: QuantScheme | None = None
    weight_only: bool = False
    x_dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        name = self.dtype if self.scheme is None else str(self.scheme)
        return f"{name} {'weight only ' if self.weight_only else ''}{self.x_dtype}"

    def matrix(self, shape: Shape, workspace: Workspace) -> Matrix:
        return make_matrix(
            shape,
            self.dtype,
            self.scheme,
            workspace,
            self.x_dtype,
            weight_only=self.weight_only,
        )


def sort(
    ids: Int32s, experts: int, heights: tuple[int, ...], device: Any, slots: Int32s | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order and tiles, in memory that holds anything. ids are strided, as in the arena."""
    tokens, times = ids.shape
    wide = torch.full((tokens, times + 3), experts + 7, dtype=torch.int32, device=device)
    wide[:, :times] = torch.from_numpy(ids)
    order = torch.full((ids.size + 1,), -9, dtype=torch.int32, device=device)
    most = most_tiles(ids.size, experts, STEP)
    tiles = torch.full((2, most + 1, 4), -9, dtype=torch.int32, device=device)
    padding = None if slots is None else torch.from_numpy(slots).to(device)
    dispatch(wide[:, :times], padding, experts, heights, order, tiles)
    return order, tiles


@dataclass(frozen=True)
class Experts:
    """Weights ``[experts, weight_rows, k]``, of gate and up where there is a gate."""

    form: Form
    weights: F32
    gated: Gating | None = None
    biases: F32 | None = None
    blocks: tuple[BlockTensor, ...] = ()
    """The same weights, where their form is one of blocks."""

    @property
    def n(self) -> int:
        rows: int = self.weights.shape[1]
        return rows // (2 if self.gated is not None else 1)

    def run(
        self,
        x: F32,
        ids: Int32s,
        device: Any,
        out_dtype: torch.dtype = torch.float32,
        max_tokens: int | None = None,
        untouched: float = 7.0,
    ) -> F32:
        """Rows ``[k * T, n]`` of the experts ids ``[T, k]``; x has a row for each token, or for
        each of them. What surrounds x and out must neither matter nor change."""
        (tokens, times), experts = ids.shape, len(self.weights)
        workspace = Workspace(device)
        k = self.weights.shape[2]
        shape = ExpertShape(
            *(self.n, k, max_tokens or tokens, self.gated is not None, experts, times),
            x_times=times if len(x) == tokens else 1,
        )
        store = self.form.matrix(Shape(self.weights.shape[1] * experts, k, 1), workspace)
        matrix = ExpertMatrix(store, shape, self.form.x_dtype, workspace)
        for expert in range(experts):
            self._fill(store, matrix.first_row(expert), expert)
        height = matrix.tile(tokens).rows
        order, tiles = sort(ids, experts, (height,), device)
        by_expert = RowsByExpert(torch.from_numpy(ids).to(device), order, tiles[0])
        source = torch.full((len(x), k + 24), float("nan"), dtype=self.form.x_dtype, device=device)
        source[:, 8:-16] = torch.from_numpy(x).to(self.form.x_dtype)
        wide = torch.full((ids.size + 1, self.n + 8), untouched, dtype=out_dtype, device=device)
        out = wide[:-1, : self.n]
        bias = None
        if self.biases is not None:
            bias = torch.from_numpy(self.biases.reshape(-1)).to(device)
        matrix.product(source[:, 8:-16], by_expert, out, bias, self.gated)
        assert (wide[-1] == untouched).all()
        assert (wide[:, self.n :] == untouched).all()
        assert (workspace.counters == 0).all()
        return out.float().cpu().numpy()

    def _fill(self, matrix: Matrix, first_row: int, expert: int) -> None:
        if not self.blocks:
            matrix.fill(first_row, torch.from_numpy(self.weights[expert]), "w")
            return
        device = matrix.weights.w.device
        blocks = self.blocks[expert]
        matrix.fill_quantized(
            first_row, blocks, "w", lambda array: torch.from_numpy(array.copy()).to(device)
        )

    def each_alone(
        self, x: F32, ids: Int32s, device: Any, out_dtype: torch.dtype = torch.float32
    ) -> F32:
        """The plain products of this backend of each row with its expert's matrix alone."""
        each = ids.reshape(-1)
        rows = x if len(x) == len(each) else np.repeat(x, ids.shape[1], axis=0)
        result = np.empty((len(each), self.n), np.float32)
        for expert in np.unique(each):
            mine = each == expert
            shape = Shape(self.n, x.shape[1], len(each), self.gated is not None)
            matrix = self.form.matrix(shape, Workspace(device))
            self._fill(matrix, 0, expert)
            source = torch.from_numpy(rows[mine]).to(self.form.x_dtype).to(device)
            out = torch.empty((len(source), self.n), dtype=out_dtype, device=device)
            bias = None
            if self.biases is not None:
                bias = torch.from_numpy(self.biases[expert]).to(device)
            matrix.product(source, out, bias, self.gated)
            result[mine] = out.float().cpu().numpy()
        return result


def draw_ids(generator: np.random.Generator, tokens: int, experts: int, times: int) -> Int32s:
    """Experts of tokens, each ``times`` different ones."""
    chosen = [generator.permutation(experts)[:times] for _ in range(tokens)]
    return np.array(chosen, np.int32).reshape(tokens, times)
