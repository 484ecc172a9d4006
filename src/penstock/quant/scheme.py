"""Quantization schemes: what codes a matrix has and which of them share a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.dtypes import WindowColumns

Bits = Literal[4, 8]
LatticeBits = Literal[2, 3, 4]
CodebookBits = Literal[3, 4]

LATTICE_COLUMNS: Final = 32
"""Columns of which rows have a whole number where points are multiplied as they are stored."""

LATTICE: Final = "E8P"
"""What backends call the codebook that they multiply by, among the formats of blocks."""

CODEBOOKS: Final = "codebooks of rows"
"""Likewise, where they multiply by matrices in :class:`CodebookScheme`."""

MOST_CODEBOOK_COLUMNS: Final = 1 << 16
"""Columns of a row in codebooks that is multiplied as it is stored, at most: those of outliers take
16 bits."""

READ_WHOLE: Final = frozenset((LATTICE, CODEBOOKS))
"""Formats whose matrices become floats where not all rows are read: turning back lattice points
joins them, and how many outliers some rows have, for which memory is reserved, the weights alone
tell."""

SparseFormat = Literal["2:4", "2:4 of floats"]
SPARSE: Final[SparseFormat] = "2:4"
"""What backends that hold sparse matrices without their zeros call that, among the formats of
blocks, where what these multiply is rounded, too."""

SPARSE_OF_FLOATS: Final[SparseFormat] = "2:4 of floats"
"""Likewise where what they multiply stays floats: of symmetric codes in groups of
``SPARSE_GROUPS``, and of no experts."""

SPARSE_GROUPS: Final = (64, 128, None)

GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True)
class GridScheme:
    """int8 with one float32 scale per row (output channel): whole numbers on the row's *grid*.

    With 4 bits, groups of ``columns`` use 16 points of the grid each, evenly apart: a window, whose
    step and origin take a byte. Products are one exact sum of integers per output. Where x is
    quantized, too, both are of the rows' Hadamard transform (:mod:`penstock.quant.hadamard`).
    """

    bits: Bits
    columns: WindowColumns = 16

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    def __str__(self) -> str:
        return f"int{self.bits}"

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of an ``[n, k]`` matrix: codes, windows and scales."""
        return n * (k + 4 if self.bits == 8 else -(-k // 2) + -(-k // self.columns) + 4)


@dataclass(frozen=True)
class GroupScheme:
    """Integers of ``bits`` bits, with one float32 scale per group of a row's columns.

    ``group_size`` columns share a scale, the last group of a row being shorter where k is no
    multiple of it; None: the whole row (an output channel) is one group. With ``zero_points`` a
    group also has the code that stands for 0, a byte, and its codes span the values it has;
    without, codes are symmetric about 0. ``sparse``: two of each four columns of every row are 0,
    and a backend holds the other two, with four bits that say which these are.
    """

    bits: Bits
    group_size: int | None
    zero_points: bool = False
    sparse: bool = False

    def __post_init__(self) -> None:
        _check_bits(self.bits)
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            raise ValueError(f"groups have 32, 64 or 128 columns, not {self.group_size}")

    def __str__(self) -> str:
        name = f"int{self.bits} by {self.group_size or 'row'}"
        if self.sparse:
            name += ", 2:4 sparse"
        return f"{name} with zero points" if self.zero_points else name

    @property
    def lowest(self) -> int:
        """The lowest code. Symmetric 8-bit codes do not use -128, whose negative is not a code."""
        if self.bits == 4:
            return -8
        return -128 if self.zero_points else -127

    @property
    def highest(self) -> int:
        return 127 if self.bits == 8 else 7

    def groups(self, k: int) -> int:
        """Number of scales in a row of ``k`` columns."""
        return 1 if self.group_size is None else -(-k // self.group_size)

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of an ``[n, k]`` matrix: its codes, scales and zero points."""
        bits = self.bits // 2 + 1 if self.sparse else self.bits
        return n * (-(-k * bits // 8) + (5 if self.zero_points else 4) * self.groups(k))


@dataclass(frozen=True)
class BlockScheme:
    """Blocks of a fixed size, each with its scales, such as GGUF's Q4_K (``quant/formats``), which
    stay as files have them until a backend packs them."""

    format: str
    """The format's name, as GGUF's tools call it, such as ``Q4_K``, where they have one."""
    columns: int
    """Number of columns in a block; k is a multiple of it."""
    block_bytes: int
    whole: bool = True
    """Whether codes stand for whole numbers, times a scale. Else products with them are
    ``weight_only``: int8 activations would meet no integers."""

    def __str__(self) -> str:
        return self.format

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of an ``[n, k]`` matrix."""
        return n * (k // self.columns) * self.block_bytes


@dataclass(frozen=True)
class LatticeScheme:
    """Points of the lattice E8, 8 columns each, of rows and columns that are turned
    (:class:`~penstock.quant.lattice_matrix.LatticeMatrix`). Products with them are ``weight_only``.
    """

    bits: LatticeBits
    seed: int
    """Decides the signs by which rows and columns are turned."""

    def __str__(self) -> str:
        return f"E8P of {self.bits} bits"

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of an ``[n, k]`` matrix: codes and a scale."""
        return n * -(-k // 8) * self.bits + 4


@dataclass(frozen=True)
class CodebookScheme:
    """Codes of values that each row has for itself, and a few weights in floats
    (:class:`~penstock.quant.codebook_matrix.CodebookMatrix`). Products with them are
    ``weight_only``."""

    bits: CodebookBits
    outliers: float
    """What part of a matrix's weights is in floats."""

    def __str__(self) -> str:
        return f"codebooks of {self.bits} bits by row"

    def outlier_count(self, n: int, k: int) -> int:
        """How many weights of an ``[n, k]`` matrix are in floats."""
        return int(n * k * self.outliers)

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of an ``[n, k]`` matrix: codes, two for each value of a row, and six for each
        outlier."""
        return n * (-(-k * self.bits // 8) + (2 << self.bits)) + 6 * self.outlier_count(n, k)


def _check_bits(bits: int) -> None:
    if bits not in (4, 8):
        raise ValueError(f"weights are quantized to 4 or 8 bits, not {bits}")


QuantScheme = GridScheme | GroupScheme | BlockScheme | LatticeScheme | CodebookScheme
TableScheme = GroupScheme | BlockScheme
"""Schemes of which a row can be looked up by itself."""


_OUTPUTS: Final = ("head", "embed")
"""Last words of the names of output matrices."""


@dataclass(frozen=True)
class Quantization:
    """Which schemes a model's matrix products use; None: the weights' own type.

    ``activations``: products of quantized weights round what they multiply to int8, too; else
    weights alone are quantized. Norms, biases, the embedding's lookup, activations between ops and
    the KV cache stay as they are in every case.
    """

    linear: QuantScheme | None = None
    head: QuantScheme | None = None
    """The scheme of output matrices, which may be embeddings, too."""
    activations: bool = True
    named: Mapping[str, QuantScheme | None] = field(default_factory=dict, hash=False)
    """The schemes of matrices that have their own, by canonical name."""

    def of(self, name: str) -> QuantScheme | None:
        """The scheme of a product's matrix, by its canonical name."""
        if name in self.named:
            return self.named[name]
        return self.head if name.rpartition(".")[2] in _OUTPUTS else self.linear
