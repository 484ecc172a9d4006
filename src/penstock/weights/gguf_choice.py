"""Which of several GGUF files is meant: by the name of a quantization, or as there is one alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.errors import ModelError
from penstock.gguf.names import SUFFIX, PartName

_BESIDE: Final = re.compile(r"(?i)(^|[-_.])(mmproj|imatrix|lora)([-_.]|$)")
"""Files that are published beside models and are none."""


def in_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder without a Hugging Face checkpoint; None where it has none.

    Raises ModelError where there are several, or only files that go beside a model.
    """
    if (folder / "config.json").exists():
        return None
    names = sorted(each.name for each in folder.glob(f"*{SUFFIX}"))
    models = _models(names)
    if not models:
        if names and not (folder / "tokenizer.json").exists():
            raise ModelError(
                f"{folder} has no model: {_shown(names)} {_is(names)}; put the model's own GGUF "
                "file there, or give its path"
            )
        return None
    if len(models) > 1:
        raise ModelError(
            f"{folder} has {len(models)} GGUF files ({_shown(models)}); give the one that is meant"
        )
    return folder / models[0]


def named(files: Iterable[str], quantization: str, where: str) -> list[str]:
    """The files of a repository that are the model in this quantization: all parts of it, the first
    one first.

    Raises ModelError, with what there is, where none is or several are.
    """
    everything = sorted(name for name in files if name.endswith(SUFFIX))
    models = _models(everything)
    if not models:
        raise ModelError(
            f"{where} has no GGUF files; leave out :{quantization} to take its safetensors"
        )
    found = [model for model in models if _is_in(model, quantization)]
    if not found:
        raise ModelError(f"{where} has no GGUF file in {quantization}, but {_shown(models)}")
    if len(found) > 1:
        raise ModelError(
            f"{where} has {len(found)} GGUF files in {quantization} ({_shown(found)}); download "
            "the one that is meant, and give its path"
        )
    return _parts(found[0], everything)


def _models(names: Sequence[str]) -> list[str]:
    """Those of the files that are models, of one in parts the first."""
    models = []
    for name in names:
        part = PartName.parse(name)
        if _BESIDE.search(PurePosixPath(name).stem) or (part is not None and part.number != 1):
            continue
        models.append(name)
    return models


def _is_in(model: str, quantization: str) -> bool:
    """Whether a file's name, or its folder's, ends with the name of a quantization."""
    part = PartName.parse(model)
    stem = model.removesuffix(SUFFIX) if part is None else part.stem
    words = re.compile(rf"(?i)(^|[-_./]){re.escape(quantization)}$")
    return any(words.search(each) is not None for each in PurePosixPath(stem).parts)


def _parts(model: str, names: Sequence[str]) -> list[str]:
    first = PartName.parse(model)
    if first is None:
        return [model]
    each = ((name, PartName.parse(name)) for name in names)
    return [name for name, part in each if part and replace(part, number=1) == first]


def _is(names: Sequence[str]) -> str:
    """What files that are no models are."""
    if all(PartName.parse(name) for name in names):
        return "is a later part of one" if len(names) == 1 else "are later parts of one"
    return "goes beside one" if len(names) == 1 else "go beside one"


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
