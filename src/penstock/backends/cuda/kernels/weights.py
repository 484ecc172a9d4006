"""A matrix in device memory, as kernels of products take it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.backends.cuda.block_layouts import BlockLayout
from penstock.backends.cuda.kernels.product_constants import WeightFormat
from penstock.backends.cuda.kernels.tiles import Kind


@dataclass(frozen=True)
class Weights:
    """A matrix as it lies on the device (``packing.py``)."""

    format: WeightFormat
    w: Tensor
    padded: int
    bits: int
    plane: int = 0
    """Columns of codes that are adjacent words, or bytes."""
    depth: int | None = None
    """Columns of an iteration; None: any number that divides ``padded``."""
    scales: Tensor | None = None
    """Those of codes, or the values that codes of a row stand for."""
    marks: Tensor | None = None
    """Windows of the grid, zero points, or the tables that points are looked up in."""
    size: int = 0
    """Columns of a group."""
    whole: bool = False
    """A row is one group."""
    integers: bool = False
    """Activations are rounded to int8."""
    layout: BlockLayout | None = None
    """How blocks lie, whose ``scales`` are units."""
    high: Tensor | None = None
    """Bits of codes that are not in words, the second codes of points, or places of codes."""

    @property
    def nbytes(self) -> int:
        every = (self.w, self.scales, self.marks, self.high)
        return sum(t.nbytes for t in every if t is not None)

    def kind(self, x_dtype: torch.dtype, gated: bool) -> Kind:
        return Kind(
            self.bits,
            1 if self.integers else x_dtype.itemsize,
            integers=self.integers,
            by_group=self.layout is not None
            or (self.format in ("group", "sparse") and not self.whole)
            or (self.format == "lattice" and self.high is not None),
            depth=self.depth,
            gated=gated,
            looked_up=self.format == "lattice",
        )

    @property
    def x_groups(self) -> int:
        """The number of scales of a row of int8 activations."""
        return 1 if self.format == "grid" or self.whole else self.padded // self.size
