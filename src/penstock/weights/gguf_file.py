"""Opens GGUF files: one, or the parts of a model that is split into several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.gguf.metadata import GgufValue
from penstock.gguf.names import SUFFIX, PartName
from penstock.gguf.tensors import GgufHeader, TensorEntry, read_header
from penstock.quant import BlockTensor
from penstock.quant.formats import GGUF_FORMATS
from penstock.weights.rows import Runs
from penstock.weights.tensor_file import DECODED_BY_GGUF, Found, Tensor, TensorFile

_MAX_PARTS: Final = 9999


class GgufFile(TensorFile):
    """The tensors of one file by name. Those in blocks are read as floats by :meth:`view`, or as
    they are by :meth:`blocks`."""

    def __init__(self, header: GgufHeader) -> None:
        super().__init__(header.path, header.size)
        self.tensors = {
            name: Tensor(name, each.type.name, each.shape, each.start, each.stop)
            for name, each in header.tensors.items()
        }
        self._entries = header.tensors

    def view(self, name: str) -> NDArray[Any]:
        entry = self._entries[name]
        if entry.type.columns == 1:
            return super().view(name)
        return self._floats(entry, 0, entry.shape[0])

    def slices(self, name: str, runs: Sequence[tuple[int, int]]) -> NDArray[Any]:
        entry = self._entries[name]
        if entry.type.columns == 1:
            return super().slices(name, runs)
        parts = [self._floats(entry, first, end) for first, end in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def blocks(self, name: str, runs: Runs | None = None) -> BlockTensor:
        """The rows of ``runs`` of a matrix as it is stored, None: all; those of a stack of matrices
        lie one below another.

        Raises WeightError where a block of them has scales that are not finite.
        """
        entry = self._entries[name]
        parts = [self._usable(entry, *run) for run in runs or ((0, self._rows(entry)),)]
        if len(parts) == 1:
            return parts[0]
        return BlockTensor(parts[0].format, np.concatenate([part.blocks for part in parts]))

    def _usable(self, entry: TensorEntry, first: int, end: int) -> BlockTensor:
        """Rows of the tensor in blocks, whose scales have been looked at."""
        form = GGUF_FORMATS[entry.type.name]
        matrix = BlockTensor(form, self._blocks(entry, first, end))
        row = matrix.first_unusable()
        if row is not None:
            self._is_broken(entry, first + row)
        return matrix

    def _is_broken(self, entry: TensorEntry, row: int) -> NoReturn:
        self._fail(
            f"has in row {row} of tensor {entry.name!r} a block of {entry.type.name} whose scale "
            "is not finite, so that the model would compute nothing; download the file again, or "
            "convert the model again"
        )

    def _rows(self, entry: TensorEntry) -> int:
        """The number of rows of all matrices."""
        return math.prod(entry.shape[:-1])

    def _blocks(self, entry: TensorEntry, first: int, end: int) -> NDArray[np.uint8]:
        """uint8 ``[rows, blocks, bytes]`` of rows ``first`` to ``end``."""
        each, nbytes = entry.shape[-1] // entry.type.columns, entry.type.block_bytes
        start, stop = (entry.start + row * each * nbytes for row in (first, end))
        octets = Tensor(entry.name, "U8", (end - first, each, nbytes), start, stop)
        return self._view(octets, np.dtype(np.uint8))

    def _floats(self, entry: TensorEntry, first: int, end: int) -> NDArray[Any]:
        """The float32 values of slices ``first`` to ``end`` of the first dimension."""
        vector = len(entry.shape) == 1  # its slices are parts of blocks
        each = self._rows(entry) // entry.shape[0]  # of a slice
        rows = (0, 1) if vector else (first * each, end * each)
        if entry.type.name in GGUF_FORMATS:
            values = self._usable(entry, *rows).dequantize()
        else:
            values = _converted(entry.type.name, self._blocks(entry, *rows))
            finite = np.isfinite(values).all(axis=1)
            if not finite.all():
                self._is_broken(entry, rows[0] + int(finite.argmin()))
        values = values[0, first:end] if vector else values.reshape(-1, *entry.shape[1:])
        values.flags.writeable = False
        return values


@dataclass(frozen=True)
class GgufModel:
    """A model's file, or all files of one that is split."""

    path: Path
    """The file, or the first part."""
    metadata: Mapping[str, GgufValue]
    tensors: Found

    @property
    def converted(self) -> tuple[str, ...]:
        """The types of its tensors that the ``gguf`` package decodes, as they are loaded."""
        types = {tensor.dtype for _, tensor in self.tensors.values()}
        return tuple(sorted(types.intersection(DECODED_BY_GGUF)))


def open_gguf(path: Path) -> GgufModel:
    """Open a model by its file, or by any part of it.

    Reads and checks what files say of their tensors, and no tensor. Raises WeightError, naming the
    file and the fix, where one is missing or corrupt, and where parts are not of one model.
    """
    paths = parts(path)
    headers = [read_header(each, WeightError) for each in paths]
    first = headers[0]
    for index, header in enumerate(headers):
        _check_part(header, index, len(headers))
    found: dict[str, tuple[TensorFile, Tensor]] = {}
    for header in headers:
        file = GgufFile(header)
        for name, tensor in file.tensors.items():
            if name in found:
                raise WeightError(
                    f"tensor {name!r} is both in {found[name][0].path.name} and in "
                    f"{file.path.name}; take all parts from one model"
                )
            found[name] = file, tensor
    total = first.metadata.get("split.tensors.count", len(found))
    if total != len(found):
        raise WeightError(
            f"{first.path} says that the model has {total} tensors, and its {len(paths)} parts "
            f"have {len(found)}; download it again"
        )
    model = GgufModel(first.path, first.metadata, found)
    if model.converted and find_spec("gguf") is None:
        raise WeightError(
            f"{first.path} has tensors in {', '.join(model.converted)}, which the gguf package "
            "decodes: pip install 'penstock[gguf]', or take the model in another quantization, "
            "such as Q4_K_M"
        )
    return model


def parts(path: Path) -> list[Path]:
    """All parts of the model that ``path`` is a part of, in order: itself, if it is no part.

    Raises WeightError, naming those that are missing.
    """
    own = PartName.parse(path.name)
    if own is None or not 1 <= own.number <= own.count <= _MAX_PARTS:
        return [path]
    count = own.count
    paths = [path.with_name(str(replace(own, number=i + 1))) for i in range(count)]
    missing = [each.name for each in paths if not each.exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise WeightError(
            f"{path} is one of {count} parts, and {shown} {'is' if len(missing) == 1 else 'are'} "
            f"missing beside it; put all parts into one folder"
        )
    return paths


def _check_part(header: GgufHeader, index: int, count: int) -> None:
    """Raise WeightError unless a file says that it is this part of as many."""
    number = header.metadata.get("split.no", 0)
    says = header.metadata.get("split.count", 1) or 1
    if number == index and says == count:
        return
    if not isinstance(says, int):
        raise WeightError(f"{header.path}: split.count is {says!r:.40}, and must be an integer")
    if count == 1:
        raise WeightError(
            f"{header.path} says that it is one of {says} parts of a model, which its name does "
            f"not; give it the name it had, such as model-00001-of-{says:05}{SUFFIX}, and put the "
            "other parts beside it"
        )
    raise WeightError(
        f"{header.path} says that it is part {_counted(number)} of {says}, and its name that it is "
        f"part {index + 1} of {count}; give it back the name it had"
    )


def _counted(number: GgufValue) -> str:
    """A part's number, counted from 1, as messages have it."""
    return str(number + 1) if isinstance(number, int) else repr(number)


def _converted(name: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of blocks that only the ``gguf`` package decodes."""
    package, quants = import_module("gguf"), import_module("gguf.quants")
    rows = np.ascontiguousarray(blocks).reshape(len(blocks), -1)
    values: NDArray[np.float32] = quants.dequantize(rows, package.GGMLQuantizationType[name])
    return values
