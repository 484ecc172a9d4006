"""Reads weights from the tensors of opened files, as their sources say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.gguf.names import is_gguf
from penstock.interface.source_walks import packed, tensors
from penstock.interface.sources import (
    Constant,
    Element,
    Factored,
    Flat,
    Logarithm,
    Merged,
    Mxfp4,
    OneOf,
    Packed,
    PackedFormat,
    RowsOf,
    RowsOfEach,
    ScaledRows,
    Shape,
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
from penstock.models.float_codes import Fp4, Fp8
from penstock.models.gguf.blocks import BlockMatrix
from penstock.models.gptq import Gptq
from penstock.models.in_blocks import InBlocks
from penstock.models.integer_matrix import Integers
from penstock.models.names import NameMap
from penstock.models.spec import DType
from penstock.quant import BlockTensor, CodebookTensor, StoredTensor
from penstock.weights.awq import read_awq
from penstock.weights.bitsandbytes import read_bnb4, read_bnb8
from penstock.weights.blocks import read_blocks
from penstock.weights.convert import convert, dequantized
from penstock.weights.float_blocks import read_in_blocks
from penstock.weights.float_codes import read_fp4, read_fp8
from penstock.weights.gptq import read_gptq
from penstock.weights.integer_matrix import read_integers
from penstock.weights.mxfp4 import read_mxfp4, read_mxfp4_blocks
from penstock.weights.tensor_file import Found

_QUANTIZED: Final = ("F4", "F6_", "F8_", "I8", "U8")
"""What names of types begin with that only quantized checkpoints have floats in."""


def as_named(found: Found, names: NameMap | None) -> Found:
    """The tensors of a checkpoint by the names that ``names`` has for them."""
    if names is None:
        return found
    return {name: found[stored] for name, stored in names.completed(found).items()}


_TYPES: Final[Mapping[Element, tuple[tuple[str, ...], str]]] = {
    "int32": (("I32",), "packed codes"),
    "uint8": (("U8",), "codes or scales"),
    "int8": (("I8",), "codes"),
    "float8": (("F8_E4M3",), "numbers of 8 bits"),
    "scale": (("F32", "BF16", "F16", "F8_E8M0", "U8"), "scales"),
}
"""The types of files that tensors of quantized matrices may have, and what they hold."""


class Span(NamedTuple):
    """Bytes of a file, from ``start`` to ``stop``."""

    path: Path
    start: int
    stop: int


READERS: Final[
    Mapping[type[PackedFormat], Callable[[Packed, Found], StoredTensor | CodebookTensor]]
] = {
    BlockMatrix: read_blocks,
    Gptq: read_gptq,
    Awq: read_awq,
    Integers: read_integers,
    Fp8: read_fp8,
    Fp4: read_fp4,
    Bnb4: read_bnb4,
    Bnb8: read_bnb8,
    InBlocks: read_in_blocks,
}
"""What reads the matrices of each format of quantized checkpoints."""


def read(source: Source, found: Found, dtype: DType) -> NDArray[Any] | StoredTensor:
    """The weight, read-only, in ``dtype``; a shifted one in float32, a quantized one as it is.

    What is in ``dtype`` already and lies together in its file is a view. Every tensor is one that
    :func:`check` has seen. Raises WeightError where a value is too large for ``dtype``.
    """
    array = _as_stored(source, found)
    if isinstance(array, CodebookTensor):
        return dequantized(array, dtype, ", ".join(each.name for each in packed(source)))
    if isinstance(array, StoredTensor):
        return array
    if not _is_shifted(source):
        array = convert(array, dtype, ", ".join(found[t.name][1].name for t in tensors(source)))
    array.flags.writeable = False
    return array


def read_member(
    source: Source, index: int, found: Found, dtype: DType
) -> NDArray[Any] | StoredTensor:
    """Matrix ``index`` of a stack, as :func:`read` has it."""
    match source:
        case Mxfp4(kept=True):
            return read_mxfp4_blocks(source, index, found)
        case RowsOfEach(Mxfp4(kept=True) as blocks, first, count, step):
            matrix = read_mxfp4_blocks(blocks, index, found)
            return matrix.taken(np.arange(first, first + count * step, step))
        case Stacked(sources):
            return read(sources[index], found, dtype)
        case RowsOfEach(Stacked(sources), first, count, 1):
            return read(RowsOf(sources[index], ((first, first + count),)), found, dtype)
    stack = read(RowsOf(source, ((index, index + 1),)), found, dtype)
    assert isinstance(stack, np.ndarray)
    member: NDArray[Any] = stack[0]
    return member


def _is_shifted(source: Source) -> bool:
    match source:
        case Shifted():
            return True
        case (
            RowsOf(inner)
            | RowsOfEach(inner)
            | Transposed(inner)
            | Unpaired(inner)
            | Flat(inner)
            | Squeezed(inner)
            | Merged(inner)
        ):
            return _is_shifted(inner)
        case Stacked(sources):
            return any(map(_is_shifted, sources))
        case _:
            return False


def _as_stored(source: Source, found: Found) -> NDArray[Any] | StoredTensor | CodebookTensor:
    """The tensors of a source as the file stores them, put together, without a change of type."""
    match source:
        case Packed():
            return READERS[type(source.format)](source, found)
        case RowsOf(Packed(format=InBlocks()) as whole, runs):
            return read_in_blocks(whole, found, runs)
        case RowsOf(Packed() | RowsOf() | Unpaired() as inner, runs) if any(packed(inner)):
            matrix = _as_stored(inner, found)
            assert isinstance(matrix, StoredTensor | CodebookTensor)
            return matrix.rows(*runs)
        case Unpaired(inner, heads) if any(packed(inner)):
            blocks = _as_stored(inner, found)
            assert isinstance(blocks, BlockTensor)
            return blocks.taken(_unpaired(blocks.shape[0], heads))
        case _:
            return _floats(source, found)


def _floats(source: Source, found: Found) -> NDArray[Any]:
    """Likewise, of sources in which nothing is quantized."""
    match source:
        case Stored(name):
            file, tensor = found[name]
            return file.view(tensor.name)
        case RowsOf(Stored(name), runs):
            file, tensor = found[name]
            return file.slices(tensor.name, runs)
        case Unpaired(inner, heads):
            paired = _floats(inner, found)
            unpaired: NDArray[Any] = paired[_unpaired(len(paired), heads)]
            return unpaired
        case RowsOf(Stacked(sources), runs) if any(first < end for first, end in runs):
            wanted = [each for first, end in runs for each in sources[first:end]]
            return _floats(Stacked(tuple(wanted)), found)
        case RowsOf(Factored(inner, factors), runs):
            some = _floats(RowsOf(inner, runs), found).astype(np.float32)
            by = _floats(factors, found).astype(np.float32).reshape(-1)
            if len(by) > 1:
                by = np.concatenate([by[slice(*run)] for run in runs])
            return (some.T * by).T
        case RowsOf(Shifted(inner, by), runs):
            return _floats(Shifted(RowsOf(inner, runs), by), found)
        case RowsOf(RowsOfEach(inner, first, count, step), runs):
            return _floats(RowsOfEach(RowsOf(inner, runs), first, count, step), found)
        case RowsOf(Transposed(inner), runs) if len(inner.shape) > 2:  # matrices of a stack
            return _floats(Transposed(RowsOf(inner, runs)), found)
        case RowsOf(Mxfp4() as stack, runs):
            return read_mxfp4(stack, found, runs)
        case RowsOf(inner, runs):
            whole = _floats(inner, found)
            if len(runs) == 1:
                return whole[slice(*runs[0])]
            return np.concatenate([whole[first:end] for first, end in runs])
        case Stacked((alone,)):
            return _floats(alone, found)[None]
        case Stacked(sources):
            return np.stack([_floats(each, found) for each in sources])
        case RowsOfEach(inner, first, count, step):
            rows = slice(first, first + count * step, step)
            return np.ascontiguousarray(_floats(inner, found)[:, rows])
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
        case Mxfp4():
            return read_mxfp4(source, found, ((0, source.shape[0]),))
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
        case Factored(inner, factors):
            by = _floats(factors, found).astype(np.float32).reshape(-1)
            return (_floats(inner, found).astype(np.float32).T * by).T
        case Constant(number, shape):
            return np.full(shape, number, np.float32)
        case Packed():
            value = READERS[type(source.format)](source, found)
            if not isinstance(value, CodebookTensor):
                raise TypeError(f"{source.name} is quantized: only its rows can be taken")
            return value.dequantize()
        case OneOf():
            raise TypeError("the way in which a checkpoint has a weight has not been chosen")


def _unpaired(rows: int, heads: int) -> NDArray[np.intp]:
    """The rows that :class:`Unpaired` takes, in its order."""
    order = np.arange(rows, dtype=np.intp).reshape(heads, -1, 2)
    return order.transpose(0, 2, 1).reshape(-1)


def check(source: Source, found: Found) -> None:
    """Raise WeightError unless each tensor, all of which are there, has the shape that is asked for
    and a type that models are served from."""
    for wanted in tensors(source):
        file, tensor = found[wanted.name]
        where = f"{file.path}: tensor {tensor.name!r}"
        types, what = _TYPES.get(wanted.element, ((), ""))
        if types and tensor.dtype not in types:
            raise WeightError(
                f"{where} is stored as {tensor.dtype}, but its format has {what} in "
                f"{' or '.join(types)}; take configuration and weights from one checkpoint"
            )
        if wanted.element == "blocks" and not tensor.in_blocks:
            raise WeightError(
                f"{where} is stored as {tensor.dtype}, but was in blocks before; the file has "
                "changed: start again"
            )
        if wanted.element == "float" and tensor.element is None:
            raise _unreadable(where, tensor.dtype)
        if not has_shape(tensor.shape, wanted):
            asks = _asks(file.path)
            raise WeightError(
                f"{where} has shape {list(tensor.shape)}, but {asks} for {list(wanted.shape)}; "
                "take both from one checkpoint"
            )


def has_shape(shape: Shape, wanted: Stored) -> bool:
    """Whether a tensor of this shape may be ``wanted``."""
    if wanted.element == "blocks":
        return (math.prod(shape[:-1]), shape[-1]) == wanted.shape
    if not wanted.loose:
        return shape == wanted.shape
    return [n for n in shape if n != 1] == [n for n in wanted.shape if n != 1]


def _asks(path: Path) -> str:
    return "its metadata ask" if is_gguf(path) else "config.json asks"


def _unreadable(where: str, dtype: str) -> WeightError:
    if dtype.startswith(_QUANTIZED):
        return WeightError(
            f"{where} is stored as {dtype}; quantized checkpoints of this kind are not supported "
            "yet, use one in F32, BF16 or F16"
        )
    return WeightError(
        f"{where} is stored as {dtype}, but it is read in F32, BF16 or F16; convert it to one of "
        "these, or take a checkpoint that has it so"
    )


def spans(source: Source, found: Found) -> Iterator[Span]:
    """The bytes of files that ``source`` is made of. Of a tensor that lies in its file as it is
    read, those of the rows that are wanted; else all of it.

    :func:`read` looks at others in two cases alone: of a :class:`UnitRows`, it divides all rows
    before it takes some; of a quantized matrix, it reads the optional tensors, too.
    """
    match source:
        case RowsOf(Stored(name, shape), runs):
            file, tensor = found[name]
            row = (tensor.stop - tensor.start) // max(shape[0], 1)
            for first, end in runs:
                yield Span(file.path, tensor.start + first * row, tensor.start + end * row)
        case RowsOf(RowsOf(inner, of), runs):
            yield from spans(RowsOf(inner, _within(of, runs)), found)
        case RowsOf(Shifted(inner) | UnitRows(inner) | RowsOfEach(inner) | Squeezed(inner), runs):
            yield from spans(RowsOf(inner, runs), found)
        case RowsOf(Transposed(inner), runs) if len(inner.shape) > 2:
            yield from spans(RowsOf(inner, runs), found)
        case RowsOf(Mxfp4(blocks, scales), runs):
            yield from spans(RowsOf(blocks, runs), found)
            yield from spans(RowsOf(scales, runs), found)
        case RowsOf(Stacked(sources), runs):
            for first, end in runs:
                for each in sources[first:end]:
                    yield from spans(each, found)
        case Stacked(sources):
            for each in sources:
                yield from spans(each, found)
        case Shifted(inner) | ScaledRows(inner) | UnitRows(inner):
            yield from spans(inner, found)
        case _:
            for stored in tensors(source):
                file, tensor = found[stored.name]
                yield Span(file.path, tensor.start, tensor.stop)


def _within(
    outer: tuple[tuple[int, int], ...], runs: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    """Runs of the rows that ``outer`` leaves, as runs of all rows."""
    result = []
    for first, end in runs:
        position = 0
        for start, stop in outer:
            low = max(first, position)
            high = min(end, position + stop - start)
            if low < high:
                result.append((start + low - position, start + high - position))
            position += stop - start
    return tuple(result)
