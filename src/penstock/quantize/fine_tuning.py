"""Training of a quantized checkpoint, before it is finished: scales, zero points, codebooks, norms
and biases, and codes where that is asked for, so that it predicts what the model in floats does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.interface.adjustable import Adjustable, Adjusted, Vector
from penstock.interface.sources import Stored
from penstock.models.json_objects import read_json_object
from penstock.quantize.adjusting import Adjusting, adjusting, as_dtype
from penstock.quantize.forms.form import Coded
from penstock.quantize.grid import F32
from penstock.quantize.layers import Target
from penstock.quantize.methods import Method
from penstock.quantize.progress import Progress, Tell
from penstock.quantize.pruning import Magnitude, SparseGpt
from penstock.quantize.quantization import Quantization
from penstock.quantize.record import FINE_TUNING
from penstock.quantize.samples import TrainingText
from penstock.quantize.tensor_file import NewTensor, write_tensors
from penstock.quantize.unfinished import Unfinished
from penstock.weights.safetensors import SafetensorsFile
from penstock.weights.tensor_file import NUMPY_DTYPES

_WANTED: Final = "wanted"
"""What a matrix was before it was rounded, beside what its form keeps."""

Windows = Sequence[Sequence[int]]


class Train(Protocol):
    """Trains weights: :func:`penstock.train.fine_tuning.fine_tune`, which needs torch, and says
    what the arguments are."""

    def __call__(
        self,
        folder: Path,
        weights: Mapping[str, Adjustable],
        fixed: Mapping[str, F32],
        steps: int,
        windows: Callable[[int], Windows],
        held_out: Windows,
        threads: int,
        state: Path,
        tell: Callable[[int, str], None],
    ) -> Adjusted: ...


@dataclass(frozen=True)
class FineTuning:
    """What is asked for."""

    steps: int
    codes: bool
    """Whether codes may change, too."""
    text: TrainingText
    train: Train

    def require(self, method: Method) -> None:
        """Raise ConfigError where this trains nothing that ``method`` makes."""
        own = _adjusting(method)
        if self.codes and not own.codes_change:
            raise ConfigError(
                "--fine-tune-codes is of integers alone, not of this method; leave it out"
            )


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a training has gained: divergences from the model in floats on text that it has not
    read, in nats a token."""

    steps: int
    held_out_tokens: int
    before: float
    after: float

    @property
    def kept(self) -> bool:
        """Whether the checkpoint has what was trained: if that is nearer to the model in floats."""
        return self.after < self.before

    @property
    def figures(self) -> dict[str, object]:
        """All of it, for the record."""
        return {**msgspec.to_builtins(self), "kept": self.kept}


def require_alone(targets: Iterable[Target]) -> None:
    """Raise ConfigError for a matrix that is not a tensor of its own as the model multiplies by
    it."""
    for target in targets:
        if not isinstance(target.source, Stored):
            raise ConfigError(
                f"{target.name} is stored transposed, or with other matrices, so it cannot be "
                "trained; leave --fine-tune out"
            )


def _adjusting(method: Method) -> Adjusting:
    return adjusting(method.form, isinstance(method, Magnitude | SparseGpt))


def kept_of(
    module: str, method: Method, made: Coded, matrix: F32, tuning: FineTuning
) -> list[NewTensor]:
    """What training needs of a module's ``matrix`` ``[n, k]``, which became ``made``."""
    kept = dict(_adjusting(method).kept(made))
    if tuning.codes:
        kept[_WANTED] = matrix
    return [NewTensor.of(f"{module}/{key}", array) for key, array in kept.items()]


def fine_tuned(
    work: Quantization, folder: Unfinished, tuning: FineTuning, threads: int, tell: Tell
) -> Outcome:
    """Train what all layers have been rounded to, and put what comes of it into the ``folder``, if
    that is nearer to the model in floats than before. Raises ConfigError, ModelError and
    WeightError."""
    recorded = folder.recorded(FINE_TUNING)
    if recorded is not None:  # all was done but for the folder's name
        return _outcome(recorded)
    if not folder.outcome.exists():
        _train(work, folder, tuning, threads, tell)
    outcome = _outcome(read_json_object(folder.outcome, ConfigError))
    if outcome.kept:
        file = SafetensorsFile(folder.trained)
        replaced = {
            name: NewTensor(name, tensor.dtype, tensor.shape, file.raw(name))
            for name, tensor in file.tensors.items()
        }
        folder.replace_tensors(replaced)
    return outcome


def _outcome(document: Mapping[str, object]) -> Outcome:
    return msgspec.convert(document, Outcome)


def _train(
    work: Quantization, folder: Unfinished, tuning: FineTuning, threads: int, tell: Tell
) -> None:
    parts = _Parts(work, folder, tuning)
    text = tuning.text

    def told(step: int, doing: str) -> None:
        at = min(step, tuning.steps - 1)
        part = float(step - at)
        tell(Progress(at, tuning.steps, part, doing, "fine-tuning", "step"))

    made = tuning.train(
        work.source.folder,
        parts.weights,
        parts.fixed,
        tuning.steps,
        text.windows,
        text.held_out,
        threads,
        folder.training,
        told,
    )
    write_tensors(folder.trained, parts.tensors(made.weights))
    tokens = sum(map(len, text.held_out))
    outcome = Outcome(
        steps=tuning.steps, held_out_tokens=tokens, before=made.before, after=made.after
    )
    folder.write_synced(folder.outcome, outcome.figures)


class _Parts:
    """What all shards of a folder have that can be trained, by the names of the checkpoint in
    floats."""

    def __init__(self, work: Quantization, folder: Unfinished, tuning: FineTuning) -> None:
        self.weights: dict[str, Adjustable] = {}
        self.fixed: dict[str, F32] = {}
        """Other weights that are not those of the checkpoint in floats."""
        self._kept: dict[str, tuple[str, Adjusting, dict[str, NDArray[Any]]]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        for index, layer in enumerate(work.layers.layers):
            file = SafetensorsFile(folder.kept(index))
            for target in layer.targets:
                own = _adjusting(work.method.of(target.module))
                start = f"{target.module}/"
                kept = {
                    name.removeprefix(start): _array(file, name)
                    for name in file.tensors
                    if name.startswith(start)
                }
                name = work.source.stored_name(target.name)
                wanted = kept.pop(_WANTED, None)
                self.weights[name] = own.adjustable(kept, wanted)
                self._kept[name] = target.module, own, kept
        for index in range(folder.shards):
            self._of_floats(work, SafetensorsFile(folder.shard(index)))
        if work.embeddings is not None:
            for name in work.embeddings.tensors:
                self.fixed[work.source.stored_name(name)] = work.embeddings.values(name)

    def _of_floats(self, work: Quantization, file: SafetensorsFile) -> None:
        """Vectors of a shard, and what else is not as it was."""
        source = {work.source.stored_name(name): name for name in work.source.tensors}
        for stored, tensor in file.tensors.items():
            if stored not in source or tensor.element is None or stored in self._kept:
                continue
            if len(tensor.shape) == 1 and stored.endswith((".weight", ".bias")):
                values = file.view(stored).astype(np.float32)
                self.weights[stored] = Vector(values, as_dtype(tensor.element))
                self._dtypes[stored] = NUMPY_DTYPES[tensor.element]
            elif not work.source.is_stored_as(source[stored], file.raw(stored)):
                self.fixed[stored] = file.view(stored).astype(np.float32)

    def tensors(self, made: Mapping[str, Adjustable]) -> list[NewTensor]:
        """The tensors of weights that were trained."""
        found: list[NewTensor] = []
        for name, each in made.items():
            if isinstance(each, Vector):
                found.append(NewTensor.of(name, each.values.astype(self._dtypes[name])))
                continue
            _, own, kept = self._kept[name]
            stem = name.removesuffix(".weight")
            arrays = own.tensors(kept, each)
            found += [NewTensor.of(f"{stem}.{end}", array) for end, array in arrays.items()]
        return found


def _array(file: SafetensorsFile, name: str) -> NDArray[Any]:
    match file.tensors[name].dtype:
        case "F32":
            return file.view(name)
        case "U8":
            return file.octets(name)
        case _:
            return file.integers(name)
