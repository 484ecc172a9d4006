"""A checkpoint of random weights in the shape of a published model, the same for every engine."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comparison.vocabulary import Vocabulary, build_vocabulary, write_tokenizer
from penstock.errors import ConfigError
from penstock.interface.sources import OneOf, Shifted, Source, Stacked, Stored
from penstock.plan.lower import lower
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

WEIGHTS = "model.safetensors"
COMPLETE = "complete.json"
"""Written last, so that a folder that an interrupted run left is known and written again."""


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config.json, model.safetensors (bfloat16) and a tokenizer."""

    folder: Path
    config: dict[str, Any]

    @property
    def vocabulary(self) -> Vocabulary:
        """Raises ConfigError where the config allows none that all engines can read."""
        try:
            return build_vocabulary(
                *map(self._number, ("vocab_size", "bos_token_id", "eos_token_id"))
            )
        except ValueError as error:
            raise ConfigError(f"the shape cannot be compared: {error}") from None

    def _number(self, name: str) -> int:
        value = self.config.get(name)
        if type(value) is not int:
            raise ConfigError(
                f"config.json has {name} {json.dumps(value)}; a shape that is compared needs one "
                "number there, so write a config.json with one and name its folder"
            )
        return value


def prepare_checkpoint(config_folder: Path, folder: Path, seed: int) -> Checkpoint:
    """The checkpoint for ``config_folder``'s config.json, written unless it is there already.

    The weights are Penstock's seeded dummies: normal values of variance ``1 / fan_in`` (standard
    deviation 0.022 for 2048 inputs), so that activations keep their size through the layers.
    Raises ConfigError as :attr:`Checkpoint.vocabulary`.
    """
    config = json.loads((config_folder / "config.json").read_text(encoding="utf-8"))
    checkpoint = Checkpoint(folder, config)
    identity = {"seed": seed, "config": config}
    marker = folder / COMPLETE
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == identity:
        return checkpoint
    vocabulary = checkpoint.vocabulary
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    shutil.copyfile(config_folder / "config.json", folder / "config.json")
    write_tokenizer(vocabulary, folder)
    _write_weights(folder, seed)
    marker.write_text(json.dumps(identity), encoding="utf-8")
    return checkpoint


def _write_weights(folder: Path, seed: int) -> None:
    """One safetensors file, a tensor at a time: an 8B model is larger than memory to spare."""
    spec = load_model_spec(folder)
    declared = lower(spec).weights
    weights = DummyWeights(declared, seed, "bfloat16")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in declared.values():
        for tensor, _ in _tensors(weight.source, 0.0):
            start, end = end, end + 2 * math.prod(tensor.shape)
            header[tensor.name] = {
                "dtype": "BF16",
                "shape": list(tensor.shape),
                "data_offsets": [start, end],
            }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name, weight in declared.items():
            matrix = weights.get(name)
            assert isinstance(matrix, np.ndarray)  # no plan of a spec alone has others
            values, first = matrix.reshape(-1), 0
            for tensor, added in _tensors(weight.source, 0.0):
                end = first + math.prod(tensor.shape)
                part = values[first:end]
                file.write((part - part.dtype.type(added) if added else part).tobytes())
                first = end


def _tensors(source: Source, added: float) -> Iterator[tuple[Stored, float]]:
    """The tensors that a weight lies in, one behind the other, and what is added to each when it is
    read."""
    match source:
        case Stored():
            yield source, added
        case Stacked(sources):
            for each in sources:
                yield from _tensors(each, added)
        case Shifted(inner, by):
            yield from _tensors(inner, added + by)
        case OneOf(sources):
            yield from _tensors(sources[0], added)
        case _:
            raise NotImplementedError(f"a weight that is read as {type(source).__name__}")
