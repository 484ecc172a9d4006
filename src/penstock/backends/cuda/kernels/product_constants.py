"""What kernels of products are compiled for."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.backends.cuda.block_layouts import BlockLayout

WeightFormat = Literal["float", "grid", "group", "blocks", "lattice", "codebook", "sparse", "heads"]
"""How codes become values: as they are, by the row's grid, by scales of groups, by a layout of
blocks, by tables of a lattice's points, by values of the row's own, or by scales of groups of which
half is 0. ``heads``: floats of heads' own matrices, which have a kernel of their own."""


class ProductConstants(msgspec.Struct, frozen=True, kw_only=True):
    """The matrix, the tile and the end of a product, which kernels get as their constant ``P``.

    Equal ones are one compiled kernel. A field is given by its own name to what needs a constant of
    Triton's: lists of sizes, and functions that compare texts.
    """

    format: WeightFormat
    bits: int
    """Bits of a code in words, of points those of a weight."""
    size: int
    """Columns of a group."""
    plane: int
    """Columns of codes that are adjacent words, or bytes."""
    layout: BlockLayout | None
    """That of ``blocks``."""
    whole: bool
    """Whether a row is one group."""
    zeros: bool
    """Whether groups have zero points."""
    ints: bool
    """Whether x holds int8 codes."""
    has_bias: bool
    activation: str
    """What a gate is activated by; ``none``: there is no gate."""
    limit: float
    """The bound of a ``clamped`` activation."""
    alpha: float
    """Its factor."""
    splits: int
    """Parts of K that are summed by themselves."""
    length: int
    """Columns of such a part."""
    parallel: bool
    """Whether parts are computed by programs of their own."""
    rows: int
    """Rows of x in a tile."""
    cols: int
    """Columns of out in a tile."""
    depth: int
    """Columns of k in an iteration."""
    unroll: int
    stages: int
    """Iterations whose loads are under way at once."""
    even: bool
    """Whether rows of x need no padding."""
    interpreted: bool
    """Whether Triton's interpreter runs the kernel (``runtime.py``)."""

    @property
    def without_sizes(self) -> ProductConstants:
        """The same of kernels that differ in the sizes of tiles and splits alone."""
        return msgspec.structs.replace(
            self, rows=0, cols=0, depth=0, unroll=0, stages=0, splits=0, length=0
        )
