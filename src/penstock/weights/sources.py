"""Reads weights from the tensors of opened files, as their sources say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.source_walks import made_of, packed, rows_pushed_down, tensors
from penstock.interface.sources import (
    Constant,
    Factored,
    Flat,
    Logarithm,
    Merged,
    OneOf,
    Packed,
    PackedFormat,
    RowsOf,
    RowsOfEach,
    ScaledRows,
    Shifted,
    Source,
    Squeezed,
    Stacked,
    Stored,
    Transposed,
    UnitRows,
    Unpaired,
)
from penstock.models.awq import Awq
from penstock.models.bitsandbytes import Bnb4, Bnb8
from penstock.models.float_codes import Fp8, Mxfp4, Nvfp4
from penstock.models.gguf.blocks import BlockMatrix
from penstock.models.gptq import Gptq
from penstock.models.in_blocks import InBlocks
from penstock.models.integer_matrix import Integers
from penstock.models.lattice_codes import LatticeCodes
from penstock.models.names import NameMap
from penstock.models.row_codebooks import RowCodebooks
from penstock.models.sparse24 import Sparse24
from penstock.models.spec import DType
from penstock.quant import CodebookTensor, StoredTensor
from penstock.weights.awq import read_awq
from penstock.weights.bitsandbytes import read_bnb4, read_bnb8
from penstock.weights.blocks import read_blocks
from penstock.weights.cast import cast, dequantized
from penstock.weights.float_blocks import read_in_blocks
from penstock.weights.float_codes import read_fp8, read_mxfp4, read_nvfp4
from penstock.weights.gptq import read_gptq
from penstock.weights.integer_matrix import read_integers
from penstock.weights.lattice_codes import read_lattice
from penstock.weights.rows import Runs, rows_of
from penstock.weights.sparse24 import read_sparse24
from penstock.weights.squeezellm import read_squeezed
from penstock.weights.tensor_file import Found


def as_named(found: Found, names: NameMap | None) -> Found:
    """The tensors of a checkpoint by the names that ``names`` has for them."""
    if names is None:
        return found
    return {name: found[stored] for name, stored in names.completed(found).items()}


Value = NDArray[Any] | StoredTensor | CodebookTensor
"""What a source is before it has the type that is asked for. Of a stack that the checkpoint has
quantized, its matrices one below another."""
PackedReader = Callable[[Packed, Found, Runs | None], Value]
"""Reads the rows of runs (first, end) of a quantized matrix, one after another; None: all. An array
has the values themselves."""


def _whole(reader: Callable[[Packed, Found], Value]) -> PackedReader:
    """The rows of a matrix that cannot be read in part."""

    def read(source: Packed, found: Found, runs: Runs | None) -> Value:
        matrix = reader(source, found)
        if isinstance(matrix, np.ndarray):
            return rows_of(matrix, runs)
        return matrix if runs is None else matrix.rows(*runs)

    return read


_BY_ROWS: Final[Mapping[type[PackedFormat], PackedReader]] = {
    BlockMatrix: read_blocks,
    Mxfp4: read_mxfp4,
    InBlocks: read_in_blocks,
}
READERS: Final[Mapping[type[PackedFormat], PackedReader]] = {
    **_BY_ROWS,
    Gptq: _whole(read_gptq),
    Awq: _whole(read_awq),
    Integers: _whole(read_integers),
    Fp8: _whole(read_fp8),
    Nvfp4: _whole(read_nvfp4),
    Bnb4: _whole(read_bnb4),
    Bnb8: _whole(read_bnb8),
    Sparse24: _whole(read_sparse24),
    RowCodebooks: _whole(read_squeezed),
    LatticeCodes: read_lattice,
}
"""What reads the matrices of each format of quantized checkpoints."""


def read(source: Source, found: Found, dtype: DType) -> NDArray[Any] | StoredTensor:
    """The weight, read-only, in ``dtype``; a shifted one in float32, a quantized one as it is.

    What is in ``dtype`` already and lies together in its file is a view. Every tensor is one that
    :func:`check` has seen. Raises WeightError where a value is too large for ``dtype``.
    """
    source = rows_pushed_down(source)
    value = _value(source, found)
    if isinstance(value, StoredTensor):
        return value
    if isinstance(value, CodebookTensor):
        names = ", ".join(each.name for each in packed(source))
        return dequantized(value, dtype, names).reshape(source.shape)
    if not _is_shifted(source):
        value = cast(value, dtype, ", ".join(found[t.name][1].name for t in tensors(source)))
    value.flags.writeable = False
    return value


def read_member(
    source: Source, index: int, found: Found, dtype: DType
) -> NDArray[Any] | StoredTensor:
    """Matrix ``index`` of a stack, as :func:`read` has it."""
    value = read(RowsOf(source, ((index, index + 1),)), found, dtype)
    if isinstance(value, StoredTensor):
        return value
    member: NDArray[Any] = value[0]
    return member


def has_rows_apart(source: Source) -> bool:
    """Whether rows of a weight can be read without reading or converting the others."""
    return _are_apart(rows_pushed_down(RowsOf(source, ((0, 1),))))


def _are_apart(source: Source) -> bool:
    match source:
        case Stored() | Constant() | RowsOf(Stored()):
            return True
        case RowsOf(Packed() as matrix):
            return type(matrix.format) in _BY_ROWS
        case RowsOf() | Packed():
            return False
    return all(map(_are_apart, made_of(source)))


def _is_shifted(source: Source) -> bool:
    """Whether a constant was added last, but for changes of shape and order."""
    match source:
        case Shifted():
            return True
        case Logarithm() | ScaledRows() | UnitRows():
            return False
    return any(map(_is_shifted, made_of(source)))


def _value(source: Source, found: Found) -> Value:
    """The tensors of a source, whose rows have been pushed down, as the file stores them, put
    together, without a change of type."""
    match source:
        case Stored(name):
            file, tensor = found[name]
            return file.view(tensor.name)
        case RowsOf(Stored(name), runs):
            file, tensor = found[name]
            return file.slices(tensor.name, runs)
        case Packed():
            return READERS[type(source.format)](source, found, None)
        case RowsOf(Packed() as whole, runs):
            each = math.prod(whole.shape[1:-1])  # rows of a matrix of a stack, or 1
            rows = tuple((first * each, end * each) for first, end in runs)
            return READERS[type(whole.format)](whole, found, rows)
        case RowsOf(inner, runs):
            value = _value(inner, found)
            return rows_of(value, runs) if isinstance(value, np.ndarray) else value.rows(*runs)
        case RowsOfEach(inner, first, count, step):
            value = _value(inner, found)
            if isinstance(value, np.ndarray):
                return np.ascontiguousarray(value[:, first : first + count * step : step])
            number, rows_of_one, _ = inner.shape
            starts = range(first, number * rows_of_one, rows_of_one)
            if step == 1:
                return value.rows(*((start, start + count) for start in starts))
            return _taken(value, [np.arange(i, i + count * step, step) for i in starts])
        case Unpaired(inner, heads):
            value = _value(inner, found)
            order = np.arange(source.shape[0], dtype=np.intp).reshape(heads, -1, 2)
            return _taken(value, [order.transpose(0, 2, 1).reshape(-1)])
        case Stacked((alone,)):
            value = _value(alone, found)
            return value[None] if isinstance(value, np.ndarray) else value
    return _floats(source, found)


def _taken(value: Value, rows: Sequence[NDArray[np.intp]]) -> Value:
    """Those rows of a matrix, or numbers of a vector, in that order."""
    order = np.concatenate(rows)
    if isinstance(value, np.ndarray):
        taken: NDArray[Any] = value[order]
        return taken
    return value.taken(order)


def _floats(source: Source, found: Found) -> NDArray[Any]:
    """Likewise, as floats."""
    match source:
        case Stacked(sources) if len(sources) != 1:
            return np.stack([_floats(each, found) for each in sources])
        case Transposed(inner):
            return _floats(inner, found).swapaxes(-1, -2)
        case Flat(inner):
            vector: NDArray[Any] = _floats(inner, found)[0]
            return vector
        case Squeezed(inner):
            return _floats(inner, found)[:, 0]
        case Logarithm(inner):
            rates: NDArray[np.float32] = -_floats(inner, found).astype(np.float32)
            if not np.all(rates > 0):
                names = ", ".join(each.name for each in tensors(inner))
                raise WeightError(f"{names} must be less than 0; convert the model again")
            logarithms: NDArray[np.float32] = np.log(rates)
            return logarithms
        case Merged(inner):
            matrices = _floats(inner, found)
            merged: NDArray[Any] = matrices.reshape(-1, *matrices.shape[2:])
            return merged
        case Shifted(inner, by):
            return _floats(inner, found).astype(np.float32) + np.float32(by)
        case ScaledRows(inner, factors):
            runs_by = [np.full(count, factor, np.float32) for count, factor in factors]
            values = _floats(inner, found).astype(np.float32)
            return (values.T * np.concatenate(runs_by)).T
        case UnitRows(inner):
            matrix: NDArray[np.float32] = _floats(inner, found).astype(np.float32)
            lengths = np.sqrt(np.sum(matrix * matrix, axis=1, keepdims=True))
            matrix /= np.maximum(lengths, np.float32(1e-12))
            return matrix
        case Factored(inner, own):
            by_row = _floats(own, found).astype(np.float32).reshape(-1)
            return (_floats(inner, found).astype(np.float32).T * by_row).T
        case Constant(number, shape):
            return np.full(shape, number, np.float32)
        case OneOf():
            raise TypeError("the way in which a checkpoint has a weight has not been chosen")
    value = _value(source, found)
    if isinstance(value, CodebookTensor):
        return value.dequantize().reshape(source.shape)
    if not isinstance(value, np.ndarray):
        names = ", ".join(each.name for each in packed(source))
        raise TypeError(f"{names} is quantized: only its rows can be taken")
    return value
