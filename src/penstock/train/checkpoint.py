"""Writing heads in their published form: ``config.json`` and safetensors, with a card."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save

from penstock.errors import ConfigError
from penstock.train.card import render
from penstock.train.draft_heads import Heads
from penstock.written_file import write_bytes


def check_folder(out: Path) -> None:
    """Make the folder that heads will be written to.

    Raises ConfigError if it cannot be, before any time is spent on training.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error.strerror}") from error
    if not os.access(out, os.W_OK):
        raise ConfigError(f"cannot write to the folder {out}; name another with --out")


def write(heads: Heads, out: Path, training: Mapping[str, object]) -> None:
    """Replace what ``out`` holds of an earlier state of these heads, each file at once.

    Matrices and vectors are bfloat16. ``training`` is the record that becomes training.json, from
    which the card is made.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in heads.published().items()}
    part = out / f"{heads.weights_file}.part"
    write_bytes(part, save(tensors, metadata={"format": "pt"}))
    part.replace(out / heads.weights_file)
    config = heads.config()
    for name, text in (
        ("config.json", json.dumps(config, indent=2) + "\n"),
        ("training.json", json.dumps(training, indent=2) + "\n"),
        ("README.md", render(config, training)),
    ):
        part = out / f"{name}.part"
        write_bytes(part, text.encode())
        part.replace(out / name)
