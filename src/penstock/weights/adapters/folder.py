"""Reads the tensors of a LoRA adapter's folder, as PEFT saves it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.adapters import LowRank
from penstock.weights.adapters.config import AdapterConfig
from penstock.weights.safetensors import SafetensorsFile, member

WEIGHTS: Final = "adapter_model.safetensors"
_PICKLED: Final = "adapter_model.bin"
_PREFIX: Final = "base_model.model."
"""What PEFT's names of tensors begin with: its own two modules around the base."""
_TENSOR: Final = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_OTHER_KINDS: Final[Mapping[str, str]] = {
    "lora_magnitude_vector": "DoRA is not served",
    "lora_embedding_": "adapters of embeddings are not served",
    ".bias": "biases are not served",
}


@dataclass(frozen=True, eq=False)
class AdapterFolder:
    """An adapter as it lies in its folder: a low-rank product for each module of its base, by the
    names that the base's checkpoint has for them."""

    path: Path
    config: AdapterConfig
    modules: Mapping[str, LowRank]
    digest: str

    @classmethod
    def read(cls, folder: Path) -> AdapterFolder:
        """Read all of it. Raises WeightError, naming the file and the fix."""
        try:
            return cls._read(folder)
        except OSError as error:
            raise WeightError(f"cannot read {folder}: {error.strerror}") from error

    @classmethod
    def _read(cls, folder: Path) -> AdapterFolder:
        if not folder.is_dir():
            raise WeightError(
                f"{folder} is not a folder; give one that PEFT's save_pretrained has written"
            )
        config = AdapterConfig.read(folder)
        if not (folder / WEIGHTS).exists() and (folder / _PICKLED).exists():
            raise WeightError(
                f"{folder} has its weights in {_PICKLED}, which can run code and is never loaded; "
                "load the adapter with PEFT and save it with safe_serialization=True"
            )
        file = SafetensorsFile(member(folder, WEIGHTS, None))
        sides: dict[str, dict[str, NDArray[Any]]] = {}
        for name in sorted(file.tensors):
            module, side = _place(file.path, name)
            if side in sides.setdefault(module, {}):
                raise WeightError(f"{file.path} has two tensors {side} of {module}")
            # A copy: the file may be replaced while the adapter is served.
            sides[module][side] = np.array(file.view(name))
        if not sides:
            raise WeightError(f"{file.path} has no tensors; save the adapter again")
        modules = {
            module: _low_rank(file.path, config, module, each) for module, each in sides.items()
        }
        return cls(folder, config, modules, _digest(modules))


def _place(path: Path, name: str) -> tuple[str, str]:
    """The module and the side, A or B, of a tensor."""
    found = _TENSOR.fullmatch(name)
    if found is None:
        why = next(
            (why for part, why in _OTHER_KINDS.items() if part in name), "it is no LoRA tensor"
        )
        raise WeightError(
            f"{path} has the tensor {name!r}: {why}; merge the adapter into its base, or save one "
            "with the tensors lora_A and lora_B alone"
        )
    return found["module"].removeprefix(_PREFIX), found["side"]


def _low_rank(
    path: Path, config: AdapterConfig, module: str, sides: Mapping[str, NDArray[Any]]
) -> LowRank:
    if len(sides) < 2:
        (side,) = sides
        raise WeightError(
            f"{path} has lora_{side} of {module} and not the other side; save the adapter again"
        )
    down, up = sides["A"], sides["B"]
    rank = config.rank_of(module)
    if down.ndim != 2 or up.ndim != 2 or len(down) != rank or up.shape[1] != rank:
        raise WeightError(
            f"{path}: ranks disagree: {config.path.name} says {rank} of {module}, whose tensors "
            f"are {list(down.shape)} and {list(up.shape)}; take both files from one adapter"
        )
    for values in (down, up):
        if not np.isfinite(values.astype(np.float32)).all():
            raise WeightError(f"{path}: a value of {module} is not finite; save the adapter again")
    return LowRank(down, up, config.scale_of(module))


def _digest(modules: Mapping[str, LowRank]) -> str:
    """A digest of all that changes a result."""
    digest = blake2b(digest_size=16, person=b"penstock-lora")
    for name, each in sorted(modules.items()):
        head = f"{name} {each.scale!r} {each.down.dtype} {each.down.shape} {each.up.shape}\n"
        digest.update(head.encode())
        for values in (each.down, each.up):
            digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
