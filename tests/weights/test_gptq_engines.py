"""Engines of checkpoints in GPTQ's format: their options, artifacts and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gptq_checkpoints import gptq_checkpoint
from support.needs import needs_native
from support.tiny_plans import Chunk, step_of

from penstock.backends.registry import backend as named
from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError
from penstock.interface.executor import run
from penstock.plan.explain import explain
from penstock.plan.ops import Linear
from penstock.quant import GroupScheme, Quantization
from penstock.resolve.quantization import _order_notes
from penstock.weights.model_folder import load_model_spec

SHUFFLED = {"bits": 4, "group": 32, "sym": False, "shuffled": True, "desc_act": True}


TOKENS = np.random.default_rng(2).integers(0, 301, 40).astype(np.int32)


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model=str(folder), backend="reference", max_model_len=64, artifact=False, **options
    )


def test_it_runs_with_what_the_checkpoint_says(tmp_path: Path) -> None:
    packed, _ = gptq_checkpoint(tmp_path, group=64, sym=False)
    engine_plan = plan_engine(config_of(packed))
    config = engine_plan.config
    scheme = GroupScheme(4, 64, True)
    assert config.schemes == Quantization(scheme, None)
    assert "as the checkpoint has them (GPTQ, int4 by 64 with zero points)" in config.explain()
    assert "stored (GPTQ, int4 by 64 with zero points)" in explain(engine_plan.plan)
    assert config.weight_bytes < 100_000 + 4 * 301 * 64 * 2
    load(engine_plan).close()
    assert plan_engine(config_of(packed, quantization="int4")).config.schemes.head is not None
    floats = plan_engine(config_of(packed, quantize_activations=False)).plan
    assert all(op.weight_only for op in floats.ops if isinstance(op, Linear) and op.scheme)


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "int8"},
        {"quantization": "int4", "quantization_group": 32},
        {"quantization": "int4", "quantization_group": 48},
        {"quantization": "int4", "quantization_zero_points": True},
        {"quantization_group": 32},
        {"quantization_group": 0},
        {"quantization_zero_points": True},
        {"quantization_group": 128, "quantization_zero_points": True},
    ],
    ids=str,
)
def test_it_is_not_rounded_once_more(tmp_path: Path, options: dict[str, Any]) -> None:
    packed, _ = gptq_checkpoint(tmp_path, group=64)
    with pytest.raises(ConfigError, match=r"quantized already \(GPTQ, int4 by 64\)") as caught:
        plan_engine(config_of(packed, **options))
    for name, value in options.items():
        if (name, value) != ("quantization", "int4"):
            assert name in str(caught.value)
    assert "leave that out" in str(caught.value)


@needs_native
def test_artifacts_tell_versions_of_the_format_apart(tmp_path: Path, capsys: Any) -> None:
    packed, _ = gptq_checkpoint(tmp_path)
    config = EngineConfig(
        model=str(packed), backend="cpu", max_model_len=64, artifact_dir=str(tmp_path / "kept")
    )
    first = plan_engine(config)
    load(first, keeping="always").close()
    text = (packed / "config.json").read_text()
    (packed / "config.json").write_text(text.replace('"sym": true', '"sym": false'))
    notes: list[str] = []
    load(plan_engine(config), note=lambda level, note: notes.append(note), keeping="never").close()
    assert not any("restored" in note for note in notes)


@needs_native
@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"desc_act": True}, True),
        ({"desc_act": True, "static_groups": False}, True),
        ({"desc_act": True, "static_groups": True}, False),
        ({"desc_act": True, "group": -1}, False),
        ({"desc_act": False}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_plan_tells_that_columns_may_be_in_another_order(
    tmp_path: Path, fields: dict[str, Any], noted: bool, capsys: Any
) -> None:
    """Where the backend may refuse that when weights are read."""
    packed, _ = gptq_checkpoint(tmp_path, **fields)
    common = ["explain", str(packed), "--no-plan", "--max-model-len", "64", "--backend"]
    for backend in ("cpu", "reference"):
        assert main([*common, backend]) == 0
        assert "when weights are read" not in capsys.readouterr().out
    config = EngineConfig(model=str(packed))
    own = load_model_spec(packed).quantized
    assert bool(_order_notes(config, own, named("cuda"))) is noted


@needs_native
def test_orders_of_columns_are_kept_with_the_matrices(tmp_path: Path) -> None:
    """An engine artifact restores both."""
    packed, _ = gptq_checkpoint(tmp_path, **SHUFFLED)
    config = EngineConfig(
        model=str(packed), backend="cpu", max_model_len=64, artifact_dir=str(tmp_path / "kept")
    )
    step = step_of([Chunk(TOKENS, 0, 40, [1, 2], rows=range(40))])
    results, notes = [], list[str]()
    for keeping in ("always", "never"):
        executor = load(
            plan_engine(config), note=lambda level, note: notes.append(note), keeping=keeping
        )
        results.append(run(executor, step).logits.copy())
        executor.close()
    assert any("restored" in note for note in notes)
    np.testing.assert_array_equal(results[0], results[1])
