"""``penstock quantize`` as tests run it, and what they do with what it has written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from penstock.backends.registry import backend
from penstock.cli import main as cli
from penstock.engine.piece_run import Bind
from penstock.quantize.forms.integers import STORAGES, Integers
from penstock.quantize.grid import IntegerGrid
from penstock.quantize.methods import Method
from penstock.quantize.quantization import Quantization
from penstock.quantize.run import Quantized, quantize
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel

SAMPLES = Samples(
    tuple(tuple(row) for row in np.random.default_rng(3).integers(0, 301, (40, 60)).tolist()),
    "forty windows",
)

SHAPE = {"intermediate_size": 96}
"""What tiny checkpoints are made with: columns in whole groups of 32."""


def work(
    folder: Path,
    method: Callable[[Integers], Method],
    *,
    bits: int = 4,
    group: int | None = 32,
    symmetric: bool = True,
    form: str = "compressed-tensors",
) -> Quantization:
    """The model in ``folder`` rounded to integers, with the samples where the method reads."""
    source = SourceModel(folder)
    storage = STORAGES[form]
    grid = IntegerGrid(bits, group, symmetric, storage.scale_dtype(source.spec.dtype))
    made = method(Integers(grid, storage))
    return Quantization(source, made, SAMPLES if made.calibrated else None)


def run(work: Quantization, out: Path, bind: Bind | None = None, **options: Any) -> Quantized:
    """Write it by the reference backend, or by ``bind``."""
    return quantize(work, out, bind or backend("reference").bind, 1, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
