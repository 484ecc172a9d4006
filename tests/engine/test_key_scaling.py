"""Keys in 4 bits are centered and scaled by what a text says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.bitwise import Requests, Served, growing, prompt
from support.checkpoints import tiny_checkpoint
from support.needs import needs_native

from penstock import SamplingParams
from penstock.backends.cpu.bind import bind
from penstock.config import EngineConfig
from penstock.engine.calibration import measure_inputs
from penstock.engine.loader import EnginePlan, plan_engine
from penstock.errors import ConfigError
from penstock.interface.executor import Limits, run
from penstock.interface.step_builder import build_step
from penstock.plan.lower import lower
from penstock.plan.observation import Observation
from penstock.plan.ops import Attention, KvWrite
from penstock.weights.checkpoint import open_weights
from penstock.weights.key_scaling import Moments, scale_keys

pytestmark = needs_native

TOKENS = [int(token) for token in np.random.default_rng(0).integers(1, 256, 40)]
INT4: dict[str, Any] = {"kv_cache_dtype": "int4", "backend": "cpu"}
STARTED: dict[str, Any] = {**INT4, "load_format": "auto"}


def planned(folder: Path, **options: Any) -> EnginePlan:
    return plan_engine(EngineConfig(model=str(folder), **{**INT4, "artifact": False, **options}))


def measured(engine_plan: EnginePlan, piece_bytes: int, threads: int) -> dict[str, NDArray[Any]]:
    observation = Observation.of(engine_plan.plan, TOKENS, piece_bytes)
    folder = Path(engine_plan.config.model_path)
    weights = open_weights(folder, engine_plan.spec, observation.weights, "float32")
    return dict(measure_inputs(bind, observation, weights, TOKENS, threads).keys)


def computed(engine_plan: EnginePlan) -> dict[str, NDArray[Any]]:
    """The same, of the buffers of the reference backend, of a plan that is not fused."""
    from array import array

    from penstock.backends.reference.executor import ReferenceExecutor

    spec = engine_plan.spec
    plan = lower(spec, "float32")
    groups = len(plan.kv_groups)
    weights = open_weights(Path(engine_plan.config.model_path), spec, plan.weights, "float32")
    executor = ReferenceExecutor(plan, weights, Limits(2 * groups, len(TOKENS), 1, 1, 1))
    tables = [[array("i", [2 * group, 2 * group + 1])] for group in range(groups)]
    run(executor, build_step([array("i", TOKENS)], [0], tables, num_logits=[1]))
    scaled = {}
    for each in engine_plan.plan.key_columns:
        of = [op for op in plan.ops if getattr(op, "layer", None) == each.layer]
        (keys,) = (executor._buffers[op.k] for op in of if isinstance(op, KvWrite))
        queries = [executor._buffers[op.q] for op in of if isinstance(op, Attention)]
        scaled[each.name] = scale_keys(
            Moments.of(keys), list(map(Moments.of, queries)), each.kv_heads, each.head_dim,
            each.centered,
        )  # fmt: skip
    return scaled


@pytest.mark.parametrize("family", ["qwen3", "gemma4_text", "gemma2"])
def test_what_is_measured_is_what_the_model_computes(family: str) -> None:
    """Keys behind their norm and rotation, of layers that others read, too; in any pieces."""
    engine_plan = planned(tiny_checkpoint(family))
    whole = measured(engine_plan, 1 << 30, 1)
    expected = computed(engine_plan)
    assert whole.keys() == expected.keys() != set()
    for name, columns in expected.items():
        np.testing.assert_allclose(whole[name][0], columns[0], rtol=0.01, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(whole[name][1], columns[1], rtol=0.1, err_msg=name)
        assert (columns[0] != 0).any() == (family != "gemma2")  # whose scores are capped
    for name, columns in measured(engine_plan, 0, 3).items():
        np.testing.assert_array_equal(columns, whole[name])


def test_keys_that_are_rounded_lose_less() -> None:
    """Scores of keys with large means and uneven columns, turned and rounded to 4 bits."""
    from penstock.backends.reference.cache import KvStore

    rng = np.random.default_rng(1)
    size = 2.0 ** rng.uniform(-3, 3, 32)
    k = ((rng.normal(size=(400, 32)) + 3 * rng.normal(size=32)) * size).astype(np.float32)
    q = (rng.normal(size=(50, 32)) / size).astype(np.float32)
    by = scale_keys(Moments.of(k[:200]), [Moments.of(q)], 1, 32, centered=True)

    def error(columns: NDArray[np.float32] | None) -> float:
        store = KvStore("int4", 13, 1, 32, turned=True, columns=columns)
        store.write(np.arange(400, dtype=np.int32), k[:, None])
        off = q @ (store.read(np.arange(400, dtype=np.int32))[:, 0] - k).T
        return float(np.square(off - off.mean(axis=1, keepdims=True)).mean())

    assert error(by.reshape(2, 1, 32)) < 0.2 * error(None)


def test_a_factor_is_of_what_the_rounded_center_leaves() -> None:
    """A key that is nearly the same for all tokens is off its bfloat16 center by more than it
    varies: were its factor of the latter, it would take the codes of its whole head."""
    k = np.random.default_rng(2).normal(size=(400, 32))
    k[:, 3] = 100.2 + k[:, 3] / 1000
    k[:, 4] = 100.2
    centers, factors = scale_keys(Moments.of(k), [Moments.of(np.ones((1, 32)))], 1, 32, True)
    left = np.sqrt(np.square(k - centers).mean(axis=0))
    np.testing.assert_allclose(factors, np.sqrt(left), rtol=0.05)
    assert centers[3] == centers[4] == 100


def test_values_that_are_not_finite_scale_nothing() -> None:
    bad = Moments.of(np.array([[np.inf, 1.0]]))
    good = Moments.of(np.ones((3, 2)))
    for pair in ((bad, good), (good, bad)):
        np.testing.assert_array_equal(scale_keys(pair[0], [pair[1]], 1, 2, True), [[0, 0], [1, 1]])
    columns = scale_keys(Moments.of(np.zeros((3, 2))), [good], 1, 2, centered=True)
    assert np.isfinite(columns).all()
    assert (columns[1] > 0).all()


def test_what_decides(bfloat16_model: Path) -> None:
    def why(**options: Any) -> str:
        engine_plan = planned(bfloat16_model, **options)
        assert not engine_plan.plan.key_columns
        return engine_plan.config.reasons["quantization_calibration"]

    assert why(quantization_calibration=False) == "keys are cached as they are, as asked"
    assert "dummy" in why(load_format="dummy")
    both = planned(bfloat16_model, quantization="int4")
    assert "columns and cached keys" in both.config.reasons["quantization_calibration"]
    for kv in ("k8v4", "int8"):
        assert not planned(bfloat16_model, kv_cache_dtype=kv).config.quantization_calibration
        with pytest.raises(ConfigError, match="no effect"):
            planned(bfloat16_model, kv_cache_dtype=kv, quantization_calibration=False)


@pytest.mark.parametrize("family", ["mamba2", "minicpm3"])
def test_models_without_keys_read_no_text(family: str) -> None:
    """Layers that keep states, or latents, have none to scale."""
    options = {"backend": "reference"} if family == "minicpm3" else {}
    config = planned(tiny_checkpoint(family), **options).config
    assert not config.quantization_calibration
    assert "quantization_calibration" not in config.reasons


def test_the_same_bits_whatever_else_runs(bfloat16_model: Path, tmp_path: Path) -> None:
    """Alone, together, in chunks, from cached prefixes, preempted, on more threads."""
    options = {**STARTED, "max_model_len": 200, "artifact_dir": str(tmp_path / "kept")}
    served = Served(bfloat16_model, options)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3)
    requests = Requests.product([prompt(i, n, 250) for i, n in enumerate((1, 33, 100))], params)
    with served.start() as llm:
        expected = requests.alone(llm)
        assert requests.together(llm) == expected  # prefixes are cached
    with served.start(threads=3, max_num_batched_tokens=16, max_num_seqs=8) as llm:
        assert requests.together(llm) == expected
    many = growing(6, max_tokens=60)
    with served.start() as llm:
        alone = many.alone(llm)
    with served.start(kv_cache_bytes=8 * served.kv_groups().page_bytes, max_model_len=128) as llm:
        assert many.together(llm) == alone
        assert llm.stats().preemptions > 0
