"""Matrices in few bits: their schemes, rounding to them, and the floats that codes stand for.

There is a type for each way in which a value is made of its code:

- :class:`GridTensor`: a whole number times the scale of the row. Made by ``--quantization``.
- :class:`GroupTensor`: a whole number times the scale of a group of columns. Made by
  ``--quantization-group``, or as GPTQ, AWQ and other checkpoints have it.
- :class:`BlockTensor`: blocks of bytes, each with its scales, as GGUF files have them or as a
  checkpoint's codes and scales are put together.
- :class:`CodebookTensor`: a table's value times the scale of a tile. No kernel has it: it is the
  form from which such checkpoints become floats.
- :class:`LatticeMatrix`: 8 columns become a point of a lattice, in a matrix that is turned. Made by
  ``penstock quantize --method quip``.
- :class:`CodebookMatrix`: one of the values that its row has for itself, or a float. Made by
  ``penstock quantize --method squeezellm``.

Plans name all but tables by their schemes (:data:`QuantScheme`), with which kernels are chosen.
"""

from penstock.quant.blocks import BlockFormat, BlockTensor
from penstock.quant.codebook import CodebookTensor
from penstock.quant.codebook_matrix import CodebookMatrix
from penstock.quant.errors import not_finite, not_sparse
from penstock.quant.grid import GridTensor, quantize_to_grid
from penstock.quant.groups import GroupTensor, quantize, require_finite, require_in_order
from penstock.quant.hadamard import transform_rows
from penstock.quant.lattice_matrix import LatticeMatrix
from penstock.quant.scheme import (
    BlockScheme,
    CodebookScheme,
    GridScheme,
    GroupScheme,
    LatticeScheme,
    Quantization,
    QuantScheme,
)

StoredTensor = GroupTensor | BlockTensor | LatticeMatrix | CodebookMatrix
"""A matrix that a checkpoint has quantized, as it is read."""

__all__ = [
    "BlockFormat",
    "BlockScheme",
    "BlockTensor",
    "CodebookMatrix",
    "CodebookScheme",
    "CodebookTensor",
    "GridScheme",
    "GridTensor",
    "GroupScheme",
    "GroupTensor",
    "LatticeMatrix",
    "LatticeScheme",
    "QuantScheme",
    "Quantization",
    "StoredTensor",
    "not_finite",
    "not_sparse",
    "quantize",
    "quantize_to_grid",
    "require_finite",
    "require_in_order",
    "transform_rows",
]
