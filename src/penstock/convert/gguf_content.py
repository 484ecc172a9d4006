"""A GGUF file as the content of another, whose tensors are of other types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.convert.content import Content, Part, SourceTensor
from penstock.convert.rounding import not_finite
from penstock.errors import ModelError, WeightError
from penstock.gguf.metadata import mapped, parse_metadata
from penstock.gguf.writing import pair
from penstock.models.gguf.architectures import ARCHITECTURES
from penstock.models.gguf.kinds import ARCHITECTURE, require_model
from penstock.quant.formats import GGUF_FORMATS
from penstock.weights.gguf_file import GgufFile, open_gguf
from penstock.weights.tensor_file import DECODED_BY_GGUF

_REPLACED: Final = frozenset(
    {"general.file_type", "general.quantization_version", "general.alignment"}
)
_SPLIT: Final = "split."
_IN_BLOCKS: Final = frozenset((*GGUF_FORMATS, *DECODED_BY_GGUF))
_VALUES: Final = 1 << 24
"""Values that are decoded at a time, about."""


class GgufContent(Content):
    """Metadata are taken over byte for byte."""

    def __init__(self, path: Path, name: str | None) -> None:
        """``name`` replaces that of the model, if it is given. Raises ModelError or WeightError for
        a file that is corrupt, or of an architecture whose tensors are not known."""
        model = open_gguf(path)
        require_model(model.metadata, model.tensors, str(path))
        architecture = model.metadata.get(ARCHITECTURE)
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            raise ModelError(
                f"{path}: general.architecture is {architecture!r:.60}, whose tensors Penstock "
                f"does not know; it knows {', '.join(e for e in ARCHITECTURES if ' ' not in e)}"
            )
        self._found = model.tensors
        self.tensors = []
        for tensor_name, (_, tensor) in model.tensors.items():
            if tensor.element is None:
                raise WeightError(
                    f"{path}: tensor {tensor_name!r} is in {tensor.dtype}, which is not converted"
                )
            self.tensors.append(SourceTensor(tensor_name, tensor.shape, tensor.dtype))
        with mapped(model.path, WeightError) as data:
            spans = parse_metadata(data, str(model.path), WeightError).spans
            self._pairs = {
                key: data[start:stop]
                for key, (start, stop) in spans.items()
                if key not in _REPLACED and not key.startswith(_SPLIT)
            }
        if name is not None:
            self._pairs["general.name"] = pair("general.name", name)
        self.metadata = model.metadata
        self.notes = ()

    def pairs(self) -> Mapping[str, bytes]:
        return self._pairs

    def rounded_again(self, types: Mapping[str, str]) -> str | None:
        again = {
            tensor.dtype
            for name, (_, tensor) in self._found.items()
            if tensor.dtype in _IN_BLOCKS and types[name] not in (tensor.dtype, "F32")
        }
        if not again:
            return None
        return (
            f"matrices in {', '.join(sorted(again))} were quantized already, and are rounded once "
            "more; where there is an original in floats, convert that"
        )

    def parts(self, tensor: SourceTensor) -> Iterator[Part]:
        file, _ = self._found[tensor.name]
        shape = tensor.shape
        if len(shape) < 2:
            yield Part(0, file.view(tensor.name).astype(np.float32).reshape(1, -1))
            return
        each = int(np.prod(shape[1:-1], dtype=np.int64))  # rows of a slice of the first dimension
        some = max(1, _VALUES // (each * shape[-1]))
        for first in range(0, shape[0], some):
            values = file.slices(tensor.name, ((first, min(first + some, shape[0])),))
            yield Part(first * each, values.astype(np.float32, copy=False).reshape(-1, shape[-1]))

    def stored_bytes(self, tensor: SourceTensor) -> NDArray[Any]:
        file, _ = self._found[tensor.name]
        if tensor.stored in GGUF_FORMATS:
            assert isinstance(file, GgufFile)
            return file.blocks(tensor.name).blocks
        for part in self.parts(tensor):
            if not np.isfinite(part.values).all():
                raise not_finite(tensor.name)
        return file.raw(tensor.name)
