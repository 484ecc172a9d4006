"""What a text makes matrices multiply is measured alike in any pieces, on any threads, and is what
the model computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from support.artifact_engines import start
from support.checkpoints import tiny_checkpoint

from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.calibration import measure_inputs
from penstock.engine.loader import EnginePlan, load, plan_engine
from penstock.errors import ConfigError, TokenizerError
from penstock.interface.executor import Limits
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.step_builder import build_step, state_tables
from penstock.interface.weights import WeightSource
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.observation import Observation, inputs
from penstock.quant.scheme import GridScheme, Quantization
from penstock.speculative_config import DraftModel
from penstock.weights.calibration_text import spread_tokens
from penstock.weights.checkpoint import open_weights
from penstock.weights.smoothing import column_squares

F64 = NDArray[np.float64]
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 256, 40)]
INT4: dict[str, Any] = {"quantization": "int4", "backend": "cpu", "artifact": False}


def planned(folder: Path, **options: Any) -> EnginePlan:
    return plan_engine(EngineConfig(model=str(folder), **INT4, **options))


def measured(
    engine_plan: EnginePlan, piece_bytes: int = 1 << 30, threads: int = 1
) -> dict[str, F64]:
    plan = engine_plan.plan
    observation = Observation.of(plan, TOKENS, piece_bytes)
    weights = opened(engine_plan, observation.weights)
    return dict(measure_inputs(bind, observation, weights, TOKENS, threads).inputs)


def opened(engine_plan: EnginePlan, weights: dict[str, PlanWeight]) -> WeightSource:
    config = engine_plan.config
    return open_weights(Path(config.model_path), engine_plan.spec, weights, "float32")


def computed(engine_plan: EnginePlan) -> dict[str, F64]:
    """The same, of the buffers of the reference backend."""
    from array import array

    spec = engine_plan.spec
    plan = fuse(lower(spec, "float32", quantization=Quantization(GridScheme(8))))
    count, blocks = len(TOKENS), -(-len(TOKENS) // BLOCK_SIZE)
    groups = len(plan.kv_groups)
    states = 1 if plan.state_layers else 0
    limits = Limits(blocks * groups, count, 1, 1, 1, max_hidden_rows=count, num_states=states)
    executor = ReferenceExecutor(plan, opened(engine_plan, plan.weights), limits)
    executor.run(
        build_step(
            [array("i", TOKENS)],
            [0],
            [[array("i", range(g * blocks, (g + 1) * blocks))] for g in range(groups)],
            num_logits=[1],
            num_hidden=[count - 1],
            states=state_tables([0], [0], [0], (), ()) if states else None,
        )
    )
    # Rows of logits come first where rows are selected; sums have no order to a few bits.
    return {name: column_squares(executor._buffers[name]) for name in inputs(engine_plan.plan)}


@pytest.mark.parametrize("family", ["llama", "gemma4_text", "qwen3_next", "gpt2"])
def test_what_is_measured_is_what_the_model_computes(family: str) -> None:
    engine_plan = planned(tiny_checkpoint(family))
    whole = measured(engine_plan)
    assert whole.keys() == inputs(engine_plan.plan) != set()
    for name, expected in computed(engine_plan).items():
        np.testing.assert_allclose(whole[name], expected, rtol=0.1, atol=1e-2, err_msg=name)
    for piece_bytes, threads in ((0, 1), (30_000, 3)):
        others = measured(engine_plan, piece_bytes, threads)
        for name, squares in whole.items():
            np.testing.assert_array_equal(others[name], squares)


def test_pieces_are_small_and_share_no_cache() -> None:
    plan = planned(tiny_checkpoint("llama", num_hidden_layers=3)).plan
    pieces = Observation.of(plan, TOKENS, piece_bytes=0).pieces
    assert len(pieces) >= 6
    assert len(Observation.of(plan, TOKENS).pieces) == 1
    layers = [{op.layer for op in piece.plan.ops if hasattr(op, "layer")} for piece in pieces]
    assert sum(map(len, layers)) == len(set().union(*layers)) == 3
    names = [buffer.name for piece in pieces for buffer in piece.observed]
    assert len(names) == len(set(names)) == len(inputs(plan))


def test_the_type_that_is_served_changes_nothing() -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    served, wide = (measured(planned(folder, dtype=dtype)) for dtype in ("bfloat16", "float32"))
    for name, squares in wide.items():
        np.testing.assert_array_equal(served[name], squares)


@pytest.mark.parametrize("codes", [{"quantization": "int4"}, {"kv_cache_dtype": "int4"}], ids=str)
def test_a_second_start_reads_no_text(
    bfloat16_model: Path, tmp_path: Path, codes: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"load_format": "auto", "backend": "cpu", **codes}
    first, second = (start(bfloat16_model, tmp_path / "kept", **options) for _ in range(2))
    assert "calibrate" in first.phases
    assert second.restored
    assert "calibrate" not in second.phases
    assert first.logits == second.logits
    alone = start(bfloat16_model, tmp_path / "kept", **options, quantization_calibration=False)
    assert not {"calibrate", "restore weights"} & set(alone.phases)
    assert alone.logits != first.logits


def test_neither_threads_nor_lengths_change_the_weights(bfloat16_model: Path) -> None:
    options: dict[str, Any] = {"load_format": "auto", "quantization": "int4", "keeping": "never"}
    one = start(bfloat16_model, None, **options, threads=1, artifact=False)
    other = start(bfloat16_model, None, **options, threads=3, artifact=False, max_model_len=64)
    assert one.logits == other.logits


def test_another_tokenizer_is_another_text(bfloat16_model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"load_format": "auto", "quantization": "int4"}
    start(bfloat16_model, tmp_path / "kept", **options)
    settings = json.loads((bfloat16_model / "tokenizer_config.json").read_text())
    (bfloat16_model / "tokenizer_config.json").write_text(
        json.dumps(settings | {"add_bos_token": False})
    )
    second = start(bfloat16_model, tmp_path / "kept", **options)
    assert "calibrate" in second.phases


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quantization_calibration": False}, "as asked"),
        ({"load_format": "dummy"}, "dummy weights"),
        ({"dtype": "float16", "backend": "reference"}, "float16"),
    ],
)
def test_where_matrices_alone_decide(
    bfloat16_model: Path, options: dict[str, Any], why: str
) -> None:
    config = EngineConfig(model=str(bfloat16_model), **{**INT4, **options})
    engine_plan = plan_engine(config)
    assert why in engine_plan.config.reasons["quantization_calibration"]
    assert not engine_plan.config.quantization_calibration
    assert not inputs(engine_plan.plan)


def test_a_model_without_a_tokenizer(bfloat16_model: Path) -> None:
    (bfloat16_model / "tokenizer.json").unlink()
    engine_plan = planned(bfloat16_model)
    assert "without a tokenizer" in engine_plan.config.reasons["quantization_calibration"]
    phases: list[str] = []
    load(engine_plan, phases.append).close()
    assert "calibrate" in phases
    tokens = spread_tokens(300, 256)
    assert len(set(tokens)) > 200
    assert max(tokens) < 300


def test_a_tokenizer_that_cannot_be_read_is_refused_with_the_way_out(bfloat16_model: Path) -> None:
    (bfloat16_model / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="--no-quantization-calibration"):
        load(planned(bfloat16_model))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quantization": "none"}, "no matrices are rounded"),
        ({"quantization_group": 32}, "not groups of columns"),
        ({"quantize_activations": False}, "weights alone"),
    ],
)
def test_other_schemes_have_no_text(
    bfloat16_model: Path, options: dict[str, Any], why: str
) -> None:
    config = EngineConfig(model=str(bfloat16_model), **{**INT4, **options})
    engine_plan = plan_engine(config)
    said = engine_plan.config.reasons.get("quantization_calibration")
    assert said is None if config.quantization == "none" else why in (said or "")
    assert not engine_plan.config.quantization_calibration
    assert not inputs(engine_plan.plan)
    with pytest.raises(ConfigError, match=f"--no-quantization-calibration.* no effect.*{why}"):
        plan_engine(msgspec.structs.replace(config, quantization_calibration=False))


def test_a_draft_of_a_target_that_is_not_calibrated() -> None:
    options = {**INT4, "quantization_calibration": False, "speculative": DraftModel(num_tokens=2)}
    drafted = plan_engine(EngineConfig(**options)).draft
    assert drafted is not None
    assert not drafted.config.quantization_calibration
