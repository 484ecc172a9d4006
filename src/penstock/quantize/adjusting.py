"""What of a rounded matrix can be trained after rounding, and how it is stored then.

Each form has an :class:`Adjusting`. What it keeps of a matrix lies in the folder that is being made
until the training is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.interface.adjustable import Adjustable, RowValues, ScaledPoints, SparseValues, Stored
from penstock.models.bitsandbytes import BLOCK
from penstock.models.lattice_codes import SCALE
from penstock.models.spec import DType
from penstock.quantize.forms.bitsandbytes import NESTED, Bnb4, Nested
from penstock.quantize.forms.codebooks import Codebooks, StoredCodebooks
from penstock.quantize.forms.form import Arrays, Coded, Forms
from penstock.quantize.forms.integers import Integers, StoredIntegers
from penstock.quantize.forms.lattice import Lattice, StoredLattice
from penstock.quantize.forms.small_floats import CodedFloats
from penstock.quantize.forms.sparse import SparseFloats, SparseMatrix
from penstock.quantize.grid import F32, IntegerMatrix, smallest
from penstock.quantize.squeezellm import CodebookRows
from penstock.weights.tensor_file import NUMPY_DTYPES

Kept = Mapping[str, NDArray[Any]]


class Adjusting(Protocol):
    """Takes the matrices of one form apart, and puts them together."""

    @property
    def codes_change(self) -> bool:
        """Whether codes can be trained, too."""
        ...

    def kept(self, coded: Coded) -> Kept:
        """What is needed of a matrix."""
        ...

    def adjustable(self, kept: Kept, wanted: F32 | None) -> Adjustable:
        """The matrix as what it is made of. ``wanted`` ``[n, k]`` is what was rounded, where codes
        may change."""
        ...

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        """Those tensors that have become others, by what follows the module's name and a dot."""
        ...


def adjusting(form: Forms, sparse: bool) -> Adjusting:
    """That of a form; ``sparse``: what is 0 stays 0. Raises ConfigError where there is none."""
    match form:
        case Integers():
            return _OfIntegers(form, sparse)
        case Bnb4():
            return _OfBlocks(form)
        case Codebooks():
            return _OfCodebooks(form)
        case SparseFloats():
            return _OfSparseFloats(form)
        case Lattice():
            return _OfLattice()
    raise ConfigError(
        "--fine-tune has nothing to train in this format, whose scales are few powers of two or "
        "small floats; take rtn, gptq, awq, nf4, squeezellm, quip, magnitude or sparsegpt"
    )


def as_dtype(dtype: DType, above: bool = False) -> Stored:
    """How floats of a type are stored: rounded; what is too large, as the largest there is. Those
    that have to be ``above`` 0 are at least the smallest."""
    own = NUMPY_DTYPES[dtype]
    octets = np.dtype(f"u{own.itemsize}")
    # Positive floats have the order of their bits: 1 is the least, and infinity behind the most.
    infinity = np.array([np.inf]).astype(own).view(octets)
    most = float((infinity - octets.type(1)).view(own)[0])
    least = float(smallest(own)) if above else -most

    def stored(values: F32) -> F32:
        kept: F32 = np.clip(values, least, most).astype(own).astype(np.float32)
        return kept

    return stored


@dataclass(frozen=True)
class _OfIntegers:
    form: Integers
    sparse: bool

    codes_change = True

    def kept(self, coded: Coded) -> Kept:
        assert isinstance(coded, StoredIntegers)
        own = coded.matrix
        found: dict[str, NDArray[Any]] = {
            "codes": own.codes,
            "scales": own.scales,
            "zeros": own.zeros,
        }
        if own.group_of is not None:
            found["group_of"] = own.group_of
        return found

    def adjustable(self, kept: Kept, wanted: F32 | None) -> ScaledPoints:
        codes, group_of = kept["codes"], kept.get("group_of")
        k = codes.shape[1]
        columns = None
        if group_of is not None:
            columns = np.argsort(group_of, kind="stable").astype(np.int32)
            codes = codes[:, columns]
            wanted = None if wanted is None else wanted[:, columns]
        grid = self.form.grid
        return ScaledPoints(
            codes,
            kept["scales"].reshape(-1),
            kept["zeros"].reshape(-1),
            k // kept["scales"].shape[1],
            as_dtype(grid.scale_dtype, above=True),
            grid.highest,
            shifts=not grid.symmetric and not self.sparse,
            sparse=self.sparse,
            wanted=wanted,
            columns=columns,
        )

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        assert isinstance(made, ScaledPoints)
        assert made.points.dtype == np.uint8
        codes = np.empty_like(kept["codes"])
        codes[:, slice(None) if made.columns is None else made.columns] = made.points
        shape = kept["scales"].shape
        scales, zeros = made.scales.reshape(shape), made.zeros.reshape(shape)
        matrix = IntegerMatrix(self.form.grid, codes, scales, zeros, kept.get("group_of"))
        return self.form.storage.arrays(matrix)


@dataclass(frozen=True)
class _OfBlocks:
    form: Bnb4

    codes_change = False

    def kept(self, coded: Coded) -> Kept:
        assert isinstance(coded, CodedFloats)
        points, maxima, nested = self.form.parts(coded)
        found: dict[str, NDArray[Any]] = {"points": points, "maxima": maxima}
        if nested is not None:
            found |= {"outer": nested.outer, "offset": np.array([nested.offset], np.float32)}
        return found

    def _stored(self, kept: Kept) -> Stored:
        if not self.form.nested:
            return as_dtype("float32", above=True)
        nested = _nested(kept)
        return lambda maxima: nested.values(nested.codes(maxima))

    def adjustable(self, kept: Kept, wanted: F32 | None) -> ScaledPoints:
        maxima = kept["maxima"]
        zeros = np.zeros(len(maxima), np.int32)
        return ScaledPoints(kept["points"], maxima, zeros, BLOCK, self._stored(kept))

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        assert isinstance(made, ScaledPoints)
        if self.form.nested:
            return {NESTED: _nested(kept).codes(made.scales)}
        return {NESTED: made.scales}


def _nested(kept: Kept) -> Nested:
    return Nested(kept["outer"], np.float32(kept["offset"][0]))


@dataclass(frozen=True)
class _OfCodebooks:
    form: Codebooks

    codes_change = False

    def kept(self, coded: Coded) -> Kept:
        assert isinstance(coded, StoredCodebooks)
        own = coded.matrix
        return {
            "codes": own.codes,
            "codebook": own.codebook,
            "apart": own.outliers.astype(np.uint8),
            "values": own.values,
        }

    def adjustable(self, kept: Kept, wanted: F32 | None) -> RowValues:
        apart = kept["apart"].astype(np.bool_)
        stored = as_dtype(self.form.dtype)
        return RowValues(kept["codes"], kept["codebook"], apart, kept["values"], stored)

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        assert isinstance(made, RowValues)
        # Values of a row are stored in ascending order, which training may have changed.
        order = np.argsort(made.values, axis=1, kind="stable")
        values = np.take_along_axis(made.values, order, axis=1)
        places = np.argsort(order, axis=1).astype(np.uint8)
        codes = np.take_along_axis(places, made.codes.astype(np.intp), axis=1)
        rows = CodebookRows(codes, values, made.apart, made.outliers)
        return StoredCodebooks(rows, self.form).arrays()


@dataclass(frozen=True)
class _OfSparseFloats:
    form: SparseFloats

    codes_change = False

    def kept(self, coded: Coded) -> Kept:
        assert isinstance(coded, SparseMatrix)
        return {"values": coded.values}

    def adjustable(self, kept: Kept, wanted: F32 | None) -> SparseValues:
        return SparseValues(kept["values"], as_dtype(self.form.dtype))

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        assert isinstance(made, SparseValues)
        return SparseMatrix(made.values, self.form).arrays()


@dataclass(frozen=True)
class _OfLattice:
    codes_change = False

    def kept(self, coded: Coded) -> Kept:
        assert isinstance(coded, StoredLattice)
        points = replace(coded.matrix, scale=np.float32(1)).dequantize()
        return {"points": points, "scale": np.array([coded.matrix.scale], np.float32)}

    def adjustable(self, kept: Kept, wanted: F32 | None) -> ScaledPoints:
        points = kept["points"]
        zeros = np.zeros(1, np.int32)
        stored = as_dtype("float32", above=True)
        return ScaledPoints(points, kept["scale"], zeros, points.size, stored)

    def tensors(self, kept: Kept, made: Adjustable) -> Arrays:
        assert isinstance(made, ScaledPoints)
        return {SCALE: made.scales}
