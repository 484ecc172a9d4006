"""Writing heads in their published form: ``config.json`` and safetensors, with a card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors.torch import save

from penstock.errors import ConfigError
from penstock.train.card import render
from penstock.train.draft_heads import Heads
from penstock.written_file import write_bytes


@contextmanager
def folder_for(out: Path) -> Iterator[None]:
    """Make the folder that heads will be written to; folders that stay empty are removed again.

    Raises ConfigError if it cannot be, before any time is spent on training.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error.strerror}") from error
    if not os.access(out, os.W_OK):
        raise ConfigError(f"cannot write to the folder {out}; name another with --out")
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def write(heads: Heads, out: Path, training: Mapping[str, object]) -> None:
    """Replace what ``out`` holds of an earlier state of these heads, each file at once.

    Matrices and vectors are bfloat16. ``training`` is the record that becomes training.json, from
    which the card is made.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in heads.published().items()}
    _replace(out / heads.weights_file, save(tensors, metadata={"format": "pt"}))
    config = heads.config()
    for name, text in (
        ("config.json", json.dumps(config, indent=2) + "\n"),
        ("training.json", json.dumps(training, indent=2) + "\n"),
        ("README.md", render(config, training)),
    ):
        _replace(out / name, text.encode())


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        write_bytes(part, data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
