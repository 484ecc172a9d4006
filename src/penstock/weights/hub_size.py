"""What a download from the hub would take, and whether it has been done."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import msgspec

from penstock.weights.hub import HUB_FILES, HUB_IGNORED, explained


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def download_bytes(model: str) -> int:
    """The bytes that ``resolve_model_folder`` downloads of a hub id. Raises ModelError as it
    does."""
    from huggingface_hub import model_info

    with explained(model, None):
        files = model_info(model, files_metadata=True).siblings or []
        return sum(file.size or 0 for file in files if is_wanted(file.rfilename))


def is_downloaded(model: str) -> bool:
    """Whether the cache holds all of a hub id's weights, its configuration and its tokenizer."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except (errors.LocalEntryNotFoundError, OSError):
        return False
    names = {"config.json", "tokenizer.json"}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names |= set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    else:
        names.add("model.safetensors")
    return all((folder / name).is_file() for name in names)


def is_wanted(name: str) -> bool:
    """Whether a file of a repository is among those that are downloaded."""

    def matches(patterns: list[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    return matches(HUB_FILES) and not matches(HUB_IGNORED)
