"""A Hugging Face checkpoint as the content of a GGUF file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.convert.content import Content, Part, SourceTensor, Values
from penstock.convert.kept import kept_as, kept_spec
from penstock.convert.kept_blocks import blocks_of
from penstock.convert.types import FileType, kept
from penstock.errors import ModelError, TokenizerError
from penstock.gguf.types import type_named
from penstock.gguf.writing import pair
from penstock.interface.weights import WeightValue
from penstock.models.gguf.description import describe, require_same, tensors_of
from penstock.models.gguf.places import Place, WrittenTensor
from penstock.plan.lower import lower
from penstock.quant import StoredTensor
from penstock.tokenizer.gguf_written import written_vocab
from penstock.tokenizer.load import load_tokenizer
from penstock.tokenizer.sentencepiece_model import SentencePieceModel, read_sentencepiece
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.model_folder import load_model_spec


class CheckpointContent(Content):
    """The weights are read one by one, in float32."""

    def __init__(self, folder: Path, name: str, keep: bool = False) -> None:
        """``keep``: what is quantized is taken over in blocks that have the same values.

        Raises ModelError, WeightError or TokenizerError for a checkpoint that is not read, or
        that a file cannot hold; no weight has been read by then.
        """
        where = str(folder)
        spec = load_model_spec(folder)
        if keep:
            spec = kept_spec(spec, where)
        self._dtype = spec.dtype
        description = describe(spec, where)
        plan = lower(replace(spec, dtype="float32"), "float32")
        self._shapes = {weight: each.shape for weight, each in plan.weights.items()}
        shapes = self._shapes
        self._written = {each.name: each for each in tensors_of(description, shapes, where)}
        self._vectors = description.vectors
        self.tensors = [
            *(
                SourceTensor(key, (len(values),), None)
                for key, values in description.vectors.items()
            ),
            *(
                SourceTensor(
                    each.name, each.shape, kept_as(each, plan.weights, where) if keep else None
                )
                for each in self._written.values()
            ),
        ]
        require_same(description, {e.name: e.shape for e in self.tensors}, where)
        self._weights = CheckpointWeights(folder, spec, plan.weights, "float32")
        tokenizer = load_tokenizer(folder)
        rows = shapes["embed"][0]
        ends = dict.fromkeys((*tokenizer.eos_token_ids, *spec.eos_token_ids))
        if any(token >= rows for token in ends):
            raise ModelError(f"{where}: a token that ends texts has no row in the embedding")
        vocab = written_vocab(tokenizer, rows, tuple(ends), where, _pieces(folder))
        self._values = {**description.values, "general.name": name, **vocab.values}
        self.metadata = self._values
        self._quantized = spec.quantized
        self.notes = (*spec.notes, *description.notes, *vocab.notes)

    def pairs(self) -> Mapping[str, bytes]:
        return {key: pair(key, value) for key, value in self._values.items()}

    def rounded_again(self, types: Mapping[str, str]) -> str | None:
        if self._quantized is None or set(types.values()) == {"F32"}:
            return None
        if any(each.stored is not None for each in self.tensors):
            return None
        return (
            f"the checkpoint was quantized already ({self._quantized}), and is rounded once more; "
            "where there is an original in floats, convert that"
        )

    def parts(self, tensor: SourceTensor) -> Iterator[Part]:
        if tensor.name in self._vectors:
            yield Part(0, np.array([self._vectors[tensor.name]], np.float32))
            return
        written = self._written[tensor.name]
        for place in written.places:
            yield from self._of_weight(written, place)

    def stored_bytes(self, tensor: SourceTensor) -> NDArray[Any]:
        assert tensor.stored is not None
        written = self._written[tensor.name]
        rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
        data = np.empty((rows, type_named(tensor.stored).nbytes((columns,))), np.uint8)
        for place in written.places:
            if len(self._shapes[place.weight]) == 3:
                each = tensor.shape[1]
                for index in range(tensor.shape[0]):
                    matrix = self._weights.member(place.weight, index)
                    own = data[index * each : (index + 1) * each]
                    own[:] = self._blocks(matrix, tensor, place)
                continue
            blocks = place.stored(self._blocks(self._weights.get(place.weight), tensor, place))
            done = 0
            for first, end in place.runs or ((0, rows),):
                data[first:end] = blocks[done : done + end - first]
                done += end - first
        return data

    def _blocks(self, matrix: WeightValue, tensor: SourceTensor, place: Place) -> NDArray[Any]:
        assert isinstance(matrix, StoredTensor)
        assert tensor.stored is not None
        return blocks_of(matrix, tensor.stored, place.weight)

    @property
    def kept_type(self) -> FileType:
        """The type of a file that keeps what is quantized."""
        stored = Counter(each.stored for each in self.tensors if each.stored is not None)
        return kept(stored.most_common(1)[0][0], self._dtype)

    def _of_weight(self, written: WrittenTensor, place: Place) -> Iterator[Part]:
        """Some slices of a tensor are a run of rows each: of a vector numbers, of a stack the rows
        of a matrix."""
        shape = written.shape
        if len(self._shapes[place.weight]) == 3:
            for index in range(shape[0]):
                values = _floats(self._weights.member(place.weight, index))
                yield Part(index * shape[1], values.reshape(shape[1:]))
            return
        values = place.stored(_floats(self._weights.get(place.weight)))
        if len(shape) == 1 and place.runs is None:
            yield Part(0, values.reshape(1, -1))
            return
        # A vector that several weights fill is one of single columns.
        rows = values.reshape(-1, shape[-1] if len(shape) > 1 else 1)
        each = len(rows) // len(values)
        done = 0
        for first, end in place.runs or ((0, shape[0]),):
            count = (end - first) * each
            yield Part(first * each, rows[done : done + count])
            done += count


def _pieces(folder: Path) -> SentencePieceModel | None:
    """SentencePiece's model, of which there may be one beside a tokenizer.json, too; None: there is
    none, or one that files of this kind do not hold."""
    path = folder / "tokenizer.model"
    if not path.is_file():
        return None
    try:
        return read_sentencepiece(path)
    except TokenizerError:
        # Beside a tokenizer.json it is not what cuts texts, and need not be of this kind at all.
        if not (folder / "tokenizer.json").exists():
            raise
        return None


def _floats(value: WeightValue) -> Values:
    if isinstance(value, StoredTensor):
        return value.dequantize()
    assert isinstance(value, np.ndarray)
    return value.astype(np.float32, copy=False)
