"""The checkpoint that is quantized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelError, WeightError
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.source_walks import chosen, tensors
from penstock.interface.sources import Source, Stored
from penstock.interface.weights import WeightValue
from penstock.models.json_objects import read_json_object
from penstock.models.registry import read_spec
from penstock.models.spec import DType, ModelSpec
from penstock.models.text_part import text_part
from penstock.quantize.tensor_file import DTYPES, NewTensor
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_files import ModelFiles
from penstock.weights.model_folder import load_model_spec
from penstock.weights.sources import as_named, read, read_member
from penstock.weights.tensor_file import Found, Tensor, TensorFile

F32 = NDArray[np.float32]


class SourceModel:
    """A folder with ``config.json`` and weights in floats."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError or WeightError for what is no such folder, before a weight is read."""
        if not folder.is_dir():
            raise ModelError(
                f"{folder} is no folder of a Hugging Face checkpoint, which alone is quantized; "
                "`penstock convert` writes GGUF files"
            )
        self.folder = folder
        self.spec = load_model_spec(folder)
        self.config = read_json_object(folder / "config.json", ModelError, infinite=True)
        files = ModelFiles.of(folder)
        self._found = as_named(files.tensors(self.spec.published), self.spec.names)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tensor.shape for name, (_, tensor) in self._found.items()
        }
        """Those of all tensors, by their names as the model's family has them."""

    def quantized(self, section: Mapping[str, object]) -> ModelSpec:
        """The model with this ``quantization_config``. Raises ModelError where it cannot be."""
        config = {**self.config, "quantization_config": dict(section)}
        names = () if text_part(config) is None else [t.name for _, t in self._found.values()]
        where = str(self.folder / "config.json")
        return read_spec(config, default_dtype=self.spec.dtype, tensors=names, where=where)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of all tensors, as the model's family has them."""
        return tuple(self._found)

    def stored_name(self, name: str) -> str:
        """What the files call a tensor."""
        return self._found[name][1].name

    def stored_module(self, module: str, source: Source) -> str:
        """What the files call a module whose matrix is in the tensors of ``source``: names of
        tensors may lack what those of the family begin with."""
        first = next(tensors(source)).name
        stored = self.stored_name(first)
        lacking = first.removesuffix(stored) if first.endswith(stored) else ""
        return module.removeprefix(lacking)

    def num_bytes(self, name: str) -> int:
        """Bytes of a tensor as it is stored."""
        tensor = self._found[name][1]
        return tensor.stop - tensor.start

    def dtype(self, name: str) -> DType:
        """The type in which a tensor is stored. Raises WeightError where it is not of floats."""
        file, tensor = self._found[name]
        if tensor.element is None:
            raise WeightError(f"{file.path} has {tensor.name} as {tensor.dtype}, not in floats")
        return tensor.element

    def is_stored_as(self, name: str, octets: NDArray[np.uint8]) -> bool:
        """Whether a tensor has these bytes."""
        file, tensor = self._found[name]
        return np.array_equal(file.raw(tensor.name), octets)

    def values(self, name: str) -> F32:
        """A tensor in float32. Raises WeightError."""
        return self.matrix(Stored(name, self.shapes[name]))

    def matrix(self, source: Source) -> F32:
        """What a source over tensors in floats makes of them, in float32. Raises WeightError."""
        value = read(source, self._found, "float32")
        assert isinstance(value, np.ndarray)
        return np.ascontiguousarray(value)

    def copied(self, names: Iterable[str]) -> list[NewTensor]:
        """Tensors as they are."""
        found = (self._found[name] for name in names)
        return [NewTensor(t.name, t.dtype, t.shape, file.raw(t.name)) for file, t in found]

    def weights(
        self, weights: Mapping[str, PlanWeight], rounded: Mapping[str, Source], dtype: DType
    ) -> ModelWeights:
        """The ``weights`` of a plan of the model, checked. ``rounded`` are sources of some of them
        over tensors that the checkpoint does not have. Raises WeightError."""
        open_weights(self.folder, self.spec, weights, dtype)
        sources = {name: chosen(weight.source, self.shapes) for name, weight in weights.items()}
        return ModelWeights(sources, rounded, self._found, dtype)


class ModelWeights:
    """A WeightSource of a plan's weights, in which tensors may be replaced by others."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        rounded: Mapping[str, Source],
        found: Found,
        dtype: DType,
    ) -> None:
        """``rounded`` are sources of weights that are read so once all their tensors are there."""
        self._sources, self._rounded, self._found, self._dtype = sources, rounded, found, dtype

    def replaced(self, arrays: Mapping[str, NDArray[Any]]) -> ModelWeights:
        """The same with other values for these tensors, and with matrices ``[n, k]`` for the
        modules among the names."""
        own = ArrayFile(arrays)
        changed = {name: (own, tensor) for name, tensor in own.tensors.items()}
        now = {
            name: source
            for name, source in self._rounded.items()
            if all(each.name in arrays for each in tensors(source))
        }
        found = {**self._found, **changed}
        return ModelWeights({**self._sources, **now}, self._rounded, found, self._dtype)

    def names(self) -> Iterable[str]:
        return self._sources.keys()

    def get(self, name: str) -> WeightValue:
        return read(self._sources[name], self._found, self._dtype)

    def looked_up(
        self, lookups: Mapping[str, str], samples: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, dict[str, F32]]]:
        """Each sample's number, and the rows that its tokens look up in tables, float32: of
        buffers, by the weights that ``lookups`` has for them."""
        tables = {buffer: np.asarray(self.get(name)) for buffer, name in lookups.items()}
        for number, tokens in enumerate(samples):
            rows = np.array(tokens)
            yield number, {b: table[rows].astype(np.float32) for b, table in tables.items()}

    def member(self, name: str, index: int) -> WeightValue:
        return read_member(self._sources[name], index, self._found, self._dtype)


class ArrayFile(TensorFile):
    """Arrays in the place of a file's tensors."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(Path("memory"), 0)
        self._arrays = arrays
        self.tensors = {
            name: Tensor(name, DTYPES[str(array.dtype)], array.shape, 0, array.nbytes)
            for name, array in arrays.items()
        }

    def view(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def slices(self, name: str, runs: Sequence[tuple[int, int]]) -> NDArray[Any]:
        parts = [self._arrays[name][slice(*run)] for run in runs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
