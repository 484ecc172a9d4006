"""2:4 sparse matrices in groups on the GPU: of each four columns of a row two are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from penstock.backends.cuda import rounding
from penstock.backends.cuda.coded_matrix import Array, Matrix, Shape, check
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.sparse_linear import spread_columns
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.packing import joined_planes, pad_columns
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.interface.weights import QuantizedTensor
from penstock.models.spec import Gating
from penstock.quant import GroupScheme, GroupTensor, not_finite, not_sparse, require_in_order
from penstock.quant.scheme import SPARSE_GROUPS

_MOST: Final = 32
"""Words of a plane at most: those of the four planes of a group."""


class SparseMatrix(Matrix):
    """Codes of 4 or 8 bits of the weights that are kept, symmetric about 0, and where they are."""

    def __init__(
        self, shape: Shape, scheme: GroupScheme, workspace: Workspace, x_dtype: torch.dtype
    ) -> None:
        """Raises ValueError for groups of 32 columns, and for those with zero points."""
        size = scheme.group_size
        if scheme.zero_points or size not in SPARSE_GROUPS:
            raise ValueError(
                f"no GPU kernel has 2:4 sparse matrices in {scheme}: groups have 64 or 128 columns "
                "or a row, and no zero points"
            )
        self.shape, self._scheme, self._workspace = shape, scheme, workspace
        self._x_dtype = x_dtype
        plane = _MOST if size is None else size // 4
        n, device, depth = shape.weight_rows, workspace.device, 8 * plane
        padded = -(-shape.k // depth) * depth
        groups = 1 if size is None else padded // size
        word = torch.uint8 if scheme.bits == 4 else torch.int16
        self._scales = torch.zeros((groups, n), device=device)
        self._places = torch.zeros((n, padded // 8), dtype=torch.uint8, device=device)
        self.weights = Weights(
            "sparse",
            torch.zeros((n, padded // 4), dtype=word, device=device),
            padded,
            bits=scheme.bits,
            plane=plane,
            depth=depth,
            scales=self._scales,
            size=size or depth,
            whole=size is None,
            high=self._places,
        )
        self._spread = Shape(shape.n, padded, shape.max_rows, shape.gated, of=shape.of)
        own = carved_bytes(self._between(shape.max_rows))
        further = launch.scratch(self.weights, self._spread, x_dtype, workspace.capability)
        workspace.reserve(own + further)

    @property
    def nbytes(self) -> int:
        """Device memory of the weights, padding included; scratch is the workspace's."""
        return self.weights.nbytes

    def tile(self, rows: int) -> Tile:
        """Return the tile of a product of ``rows`` rows."""
        at = self._workspace.capability
        return launch.tile_of(self.weights, self._spread, self._x_dtype, rows, at)

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        for some in rounding.slices(len(part), self.shape.k):
            codes, scales, _, finite = rounding.round_to_groups(part[some], self._scheme)
            if not bool(finite):
                raise not_finite(name)
            self._fill_whole(first_row + some.start, codes, scales, name)

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        if not isinstance(part, GroupTensor):
            super().fill_quantized(first_row, part, name, put)
            return
        require_in_order(part, name)
        for some in rounding.slices(len(part.codes), self.shape.k):
            rows = part.rows((some.start, some.stop))
            self._fill_whole(first_row + some.start, put(rows.codes), put(rows.scales), name)

    def _fill_whole(self, first_row: int, codes: Tensor, scales: Tensor, name: str) -> None:
        """Keep codes int8 ``[rows, k]``, zeros among them. Raises WeightError, naming ``name``,
        where more than two of four are none."""
        fours = codes.view(len(codes), -1, 4)
        if bool(((fours != 0).sum(dim=2) > 2).any()):
            raise not_sparse(name)
        kept = (fours == 0).to(torch.uint8).argsort(dim=2, stable=True)[:, :, :2]
        places = kept.sort(dim=2).values
        pairs = fours.gather(2, places).view(len(codes), -1)
        self.fill_kept(first_row, pairs, places.view(len(codes), -1).to(torch.uint8), scales)

    def fill_kept(self, first_row: int, codes: Tensor, places: Tensor, scales: Tensor) -> None:
        """Keep rows from ``first_row`` on, all of one matrix or some.

        codes int8 ``[rows, k / 2]``, of each four columns two; places uint8 likewise, which of the
        four each is, 0 to 3; scales float32 ``[rows, groups]``.
        """
        bits, padded = self._scheme.bits, self.weights.padded
        for some in rounding.slices(len(codes), self.shape.k):
            to = slice(first_row + some.start, first_row + some.stop)
            pairs = pad_columns(codes[some].view(torch.uint8), padded // 2)
            if bits == 4:
                words = (pairs[:, 0::2] & 15) | (pairs[:, 1::2] << 4)
            else:  # bytes of a word ascend on every device that torch runs on
                words = pairs.contiguous().view(torch.int16)
            self.weights.w[to] = words
            where = pad_columns(places[some], padded // 2)
            four = where[:, 0::2] | (where[:, 1::2] << 2)
            self._places[to] = joined_planes(four.contiguous(), 4, 2, self.weights.plane)
            self._scales[: scales.shape[1], to] = scales[some].t()

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        """As :meth:`~penstock.backends.cuda.coded_matrix.Matrix.product` has it."""
        check(self.shape, x, out, bias, gated)
        if len(x) == 0:
            return
        between = self._between(len(x))
        (spread,) = self._workspace.carve(between)
        spread_columns(x, spread, self.weights.plane)
        launch.product(
            self.weights,
            self._spread,
            spread,
            out,
            bias,
            gated,
            self._workspace,
            taken=carved_bytes(between),
        )

    def _between(self, rows: int) -> tuple[tuple[int, int], torch.dtype]:
        return (rows, self.weights.padded), self._x_dtype
