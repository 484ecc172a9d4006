"""A Hugging Face checkpoint as the content of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.convert.content import Content, Part, SourceTensor, Values
from penstock.errors import ModelError
from penstock.gguf.writing import pair
from penstock.interface.weights import WeightValue
from penstock.models.gguf.description import describe, require_same
from penstock.models.gguf.places import Place, WrittenTensor, written_tensors
from penstock.models.gguf.values import first_experts
from penstock.plan.lower import lower
from penstock.quant import StoredTensor
from penstock.tokenizer.gguf_written import written_vocab
from penstock.tokenizer.load import load_tokenizer
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.model_folder import load_model_spec


class CheckpointContent(Content):
    """The weights are read one by one, in float32."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raises ModelError, WeightError or TokenizerError for a checkpoint that is not read, or
        that a file cannot hold; no weight has been read by then."""
        where = str(folder)
        spec = load_model_spec(folder)
        description = describe(spec, where)
        plan = lower(replace(spec, dtype="float32"), "float32")
        shapes = {weight: each.shape for weight, each in plan.weights.items()}
        self._written = {each.name: each for each in written_tensors(description.names, shapes)}
        self._vectors = description.vectors
        self.tensors = [
            *(
                SourceTensor(key, (len(values),), None)
                for key, values in description.vectors.items()
            ),
            *(SourceTensor(each.name, each.shape, None) for each in self._written.values()),
        ]
        require_same(description, {e.name: e.shape for e in self.tensors}, where)
        self._weights = CheckpointWeights(folder, spec, plan.weights, "float32")
        tokenizer = load_tokenizer(folder)
        rows = shapes["embed"][0]
        ends = dict.fromkeys((*tokenizer.eos_token_ids, *spec.eos_token_ids))
        if any(token >= rows for token in ends):
            raise ModelError(f"{where}: a token that ends texts has no row in the embedding")
        vocab = written_vocab(tokenizer, rows, tuple(ends), where)
        self._values = {**description.values, "general.name": name, **vocab.values}
        self.num_layers = len(spec.layers)
        experts = first_experts(spec)
        self.num_experts = 0 if experts is None else experts.num_experts
        rounded = () if spec.quantized is None else (_rounded(str(spec.quantized)),)
        self.notes = (*spec.notes, *description.notes, *vocab.notes, *rounded)

    def pairs(self) -> Mapping[str, bytes]:
        return {key: pair(key, value) for key, value in self._values.items()}

    def parts(self, tensor: SourceTensor) -> Iterator[Part]:
        if tensor.name in self._vectors:
            yield Part(0, np.array([self._vectors[tensor.name]], np.float32))
            return
        written = self._written[tensor.name]
        for place in written.places:
            yield from self._of_weight(written, place)

    def stored_bytes(self, tensor: SourceTensor) -> NDArray[Any]:
        raise NotImplementedError(f"{tensor.name} is in no type of GGUF")

    def _of_weight(self, written: WrittenTensor, place: Place) -> Iterator[Part]:
        shape = written.shape
        if len(shape) == 3:
            for index in range(shape[0]):
                values = _floats(self._weights.member(place.weight, index))
                yield Part(index * shape[1], values.reshape(shape[1:]))
            return
        values = _floats(self._weights.get(place.weight))
        if place.paired_heads is not None:
            values = values[_paired(len(values), place.paired_heads)]
        if place.less:
            values = values - np.float32(place.less)
        if len(shape) > 1:
            yield Part(place.first, values.reshape(-1, shape[1]))
        elif len(written.places) == 1:
            yield Part(0, values.reshape(1, -1))
        else:  # a vector that several fill: of single columns
            yield Part(place.first, values.reshape(-1, 1))


def _floats(value: WeightValue) -> Values:
    if isinstance(value, StoredTensor):
        return value.dequantize()
    assert isinstance(value, np.ndarray)
    return value.astype(np.float32, copy=False)


def _paired(rows: int, heads: int) -> NDArray[np.intp]:
    """Where each row of a matrix whose components that rotate together lie side by side is found in
    one where they lie half a head apart."""
    order = np.arange(rows).reshape(heads, 2, -1)
    paired: NDArray[np.intp] = order.transpose(0, 2, 1).reshape(-1)
    return paired


def _rounded(kinds: str) -> str:
    return (
        f"the checkpoint was quantized already ({kinds}), and is rounded once more; where there is "
        "an original in floats, convert that"
    )
