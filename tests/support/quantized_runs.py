"""``penstock quantize`` as tests run it, and what they do with what it has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from penstock.cli import main as cli
from penstock.quantize.samples import Samples

SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (40, 60)).tolist()),
    "forty windows",
)


def command(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Run the command, and return its exit code and what it has said to both streams."""
    capsys.readouterr()  # what making a checkpoint has said
    code = cli.main(["quantize", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def into_one_file(folder: Path) -> None:
    """Put the tensors of a checkpoint's files into one, without an index."""
    (folder / "model.safetensors.index.json").unlink()
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("model-*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    save_file(tensors, folder / "model.safetensors")
