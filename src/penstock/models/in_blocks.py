"""Matrices in FP8, FP4 and the like that are read in blocks, which kernels multiply as they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol, runtime_checkable

from penstock.interface.sources import Shape, Stored
from penstock.models.integer_groups import group_of
from penstock.models.integer_matrix import Integers
from penstock.models.lattice_codes import LatticeCodes
from penstock.models.packed_matrix import EitherFormat, MatrixFormat
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.sparse24 import OF
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.scheme import (
    CODEBOOKS,
    LATTICE,
    LATTICE_COLUMNS,
    MOST_CODEBOOK_COLUMNS,
    SPARSE,
    SPARSE_GROUPS,
    SPARSE_OF_FLOATS,
    BlockScheme,
    SparseFormat,
)

_USUAL: Final = 128
"""Columns of a matrix of any usual shape."""


@runtime_checkable
class FloatCodes(MatrixFormat, Protocol):
    """A format of floating-point codes with scales, whose matrices may be read in blocks."""

    def blocks(self, k: int) -> str | None:
        """The format of the blocks that rows of ``k`` columns are made of; None where they are no
        whole blocks of any."""
        ...


@dataclass(frozen=True)
class InBlocks:
    """A matrix that a checkpoint stores as ``form``, read in the blocks of ``scheme``."""

    form: FloatCodes
    scheme: BlockScheme
    any_order: ClassVar[bool] = False

    def __str__(self) -> str:
        return str(self.form)

    @property
    def stacks(self) -> bool:
        return self.form.stacks

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        return self.form.tensors(name, shape)

    def optional(self, name: str) -> tuple[str, ...]:
        return self.form.optional(name)


def in_blocks(form: MatrixFormat, formats: Collection[str], k: int = _USUAL) -> MatrixFormat:
    """``form`` of a matrix of ``k`` columns, in blocks if these are of one of ``formats``, or in
    lattice points or codebooks of rows, if these are among them, or of integers without the zeros
    of 2:4 sparsity, where that is; else itself.
    """
    if isinstance(form, LatticeCodes):
        return replace(form, decoded=LATTICE not in formats or k % LATTICE_COLUMNS > 0)
    if isinstance(form, RowCodebooks):
        return replace(form, decoded=CODEBOOKS not in formats or k > MOST_CODEBOOK_COLUMNS)
    if isinstance(form, Integers):
        return replace(form, held_sparse=_held_sparse(form, formats, k))
    if isinstance(form, EitherFormat):
        return EitherFormat(tuple(in_blocks(each, formats, k) for each in form.formats))
    name = form.blocks(k) if isinstance(form, FloatCodes) else None
    if name is None or name not in formats:
        return form
    assert isinstance(form, FloatCodes)
    return InBlocks(form, BLOCK_FORMATS[name].scheme)


def _held_sparse(form: Integers, formats: Collection[str], k: int) -> SparseFormat | None:
    if not form.pruned or k % OF:
        return None
    if SPARSE in formats:
        return SPARSE
    fits = not form.zero_points and not form.any_order and group_of(form.group) in SPARSE_GROUPS
    return SPARSE_OF_FLOATS if fits and SPARSE_OF_FLOATS in formats else None
