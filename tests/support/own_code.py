"""Families that exist as code of their checkpoints alone: tiny models of others by their names."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from support.checkpoints import tiny_checkpoint

Tensors = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class OwnCode:
    """How a tiny model of a family of transformers is written as one of the family's own code."""

    like: str
    """The family of transformers that computes the same."""
    fields: Mapping[str, Any]
    """The configuration of the other family, beside the shared fields."""
    config: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The configuration as the family writes it, of that of the other."""
    tensors: Callable[[Tensors, Mapping[str, Any]], Tensors]
    """The tensors as the family stores them, of those of the other and its configuration."""
    unit_head: bool = False
    """Whether rows of the output matrix have length 1 in the other family."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """A ``config.json`` as it is published, with fewer layers."""

    def pair(self) -> tuple[Path, Path]:
        """A checkpoint of the other family, and the same model as this one."""
        original = tiny_checkpoint(self.like, **self.fields)
        if self.unit_head:
            original = _with_unit_head(original)
        config = json.loads((original / "config.json").read_text())
        folder = Path(tempfile.mkdtemp(prefix="own-", dir=original.parent))
        shutil.copytree(original, folder, dirs_exist_ok=True)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(config)))
        stored = self.tensors(load_file(original / "model.safetensors"), config)
        arrays = {name: np.ascontiguousarray(array) for name, array in stored.items()}
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
        return original, folder


def renamed(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    """The tensors with the first of ``names`` that occurs in each name replaced."""

    def name(old: str) -> str:
        for part, new in names.items():
            if part in old:
                old = old.replace(part, new)
        return old

    return {name(old): array for old, array in tensors.items()}


def joined(tensors: Tensors, parts: tuple[str, ...], whole: str) -> Tensors:
    """The tensors with those of ``parts`` in each layer as rows of one."""
    result = dict(tensors)
    for first in [name for name in tensors if parts[0] in name]:
        pieces = [result.pop(first.replace(parts[0], part)) for part in parts]
        result[first.replace(parts[0], whole)] = np.concatenate(pieces)
    return result


def _with_unit_head(folder: Path) -> Path:
    """A copy of a checkpoint, the rows of whose output matrix have length 1."""
    copy = Path(tempfile.mkdtemp(prefix="unit-", dir=folder.parent))
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"]
    tensors["lm_head.weight"] = head / np.linalg.norm(head, axis=1, keepdims=True)
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy
