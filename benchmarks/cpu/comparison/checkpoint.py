"""A checkpoint of random weights in the shape of a published model, the same for every engine."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.vocabulary import Vocabulary, build_vocabulary, write_tokenizer
from penstock.interface.sources import Stored
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
        c = self.config
        return build_vocabulary(c["vocab_size"], c["bos_token_id"], c["eos_token_id"])


def prepare_checkpoint(config_folder: Path, folder: Path, seed: int) -> Checkpoint:
    """The checkpoint for ``config_folder``'s config.json, written unless it is there already.

    The weights are Penstock's seeded dummies: normal values of variance ``1 / fan_in`` (standard
    deviation 0.022 for 2048 inputs), so that activations keep their size through the layers.
    """
    config = json.loads((config_folder / "config.json").read_text(encoding="utf-8"))
    checkpoint = Checkpoint(folder, config)
    identity = {"seed": seed, "config": config}
    marker = folder / COMPLETE
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == identity:
        return checkpoint
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    shutil.copyfile(config_folder / "config.json", folder / "config.json")
    write_tokenizer(checkpoint.vocabulary, folder)
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
        assert isinstance(weight.source, Stored), "fused and transposed tensors are not written"
        start, end = end, end + 2 * math.prod(weight.shape)
        header[weight.source.name] = {
            "dtype": "BF16",
            "shape": list(weight.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (folder / WEIGHTS).open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name in declared:
            file.write(weights.get(name).tobytes())
