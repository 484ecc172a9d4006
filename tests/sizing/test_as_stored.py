"""Matrices that a checkpoint has in few bits take these where a backend multiplies by them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import tiny_checkpoint

from penstock.backends.registry import multiplied_as_stored
from penstock.plan.ops import Linear
from penstock.sizing.accelerator import DeviceKind
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.parallel import Parallelism
from penstock.weights.model_folder import load_model_spec

AS_STORED = Precision("none", "bfloat16")
QUIP = {"quant_method": "quip", "codebook": "E8P", "bits": 2, "seed": 0}
SQUEEZELLM = {"quant_method": "penstock-squeezellm", "bits": 3, "outliers": 0.0}


@pytest.fixture(params=[QUIP, SQUEEZELLM], ids=["quip", "squeezellm"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> SizedModel:
    """One whose matrices of layers are said to be quantized: no weights are read."""
    source = tiny_checkpoint("llama", dtype="bfloat16", hidden_size=256, intermediate_size=512)
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {**request.param, "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return SizedModel(load_model_spec(folder), multiplied_as_stored())


def bits(model: SizedModel, kind: DeviceKind, precision: Precision = AS_STORED) -> float:
    """Bits of a weight of matrices in layers."""
    plan = model.plan(kind, precision, 64).plan
    layers = [op for op in plan.ops if isinstance(op, Linear) and "logits" not in op.out]
    count = sum(part.n * op.k for op in layers for part in op.parts)
    sizes = (
        16 * part.n * op.k if op.scheme is None else 8 * op.scheme.nbytes(part.n, op.k)
        for op in layers
        for part in op.parts
    )
    return sum(sizes) / count


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_codes_are_in_memory(model: SizedModel, kind: DeviceKind) -> None:
    assert 2 < bits(model, kind) < 4
    kept = model.plan(kind, AS_STORED, 64).footprint.weights
    rounded = model.plan(kind, Precision("int8", "bfloat16"), 64).footprint.weights
    assert kept < rounded


def test_what_is_rounded_once_more_takes_what_it_is_rounded_to(model: SizedModel) -> None:
    assert bits(model, "cpu", Precision("int8", "bfloat16")) > 8


def test_ranks_with_some_rows_have_floats(model: SizedModel) -> None:
    (part,) = model.parts("cpu", AS_STORED, 64, Parallelism(tensor=2))
    assert all(op.scheme is None for op in part.plan.ops if isinstance(op, Linear))
