"""Which weights are balanced: those around products that are rounded, where nothing else reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint

from penstock.config import EngineConfig
from penstock.engine.loader import plan_engine
from penstock.plan import ops
from penstock.plan.balance import balance
from penstock.plan.observation import inputs
from penstock.plan.plan import Plan
from penstock.weights.checkpoint import open_weights


def plan_of(folder: Path, **options: object) -> Plan:
    return plan_engine(EngineConfig(model=str(folder), **{"quantization": "int8", **options})).plan  # type: ignore[arg-type]


def sides(plan: Plan) -> dict[str, list[str]]:
    """What each balanced weight of the second layer takes part in."""
    layer = "layers.1."
    return {
        name.removeprefix(layer): [given.side for given in weight.balances]
        for name, weight in plan.weights.items()
        if name.startswith(layer) and weight.balances
    }


DENSE = {
    "attn_norm": ["input"],
    "q": ["matrix"],
    "k": ["matrix"],
    "v": ["matrix"],
    "mlp_norm": ["input"],
    "gate": ["matrix"],
    "up": ["matrix", "input"],
    "down": ["matrix"],
}


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_products_on_the_grid(family: str, name: str) -> None:
    plan = plan_of(tiny_checkpoint(family), quantization=name, dtype="bfloat16")
    assert sides(plan) == DENSE
    assert not plan.weights["final_norm"].balances  # what it makes is a result
    assert not plan.weights["embed"].balances


@pytest.mark.parametrize(
    "options",
    [
        {"quantization": "none"},
        {"quantization_group": 32},
        {"quantize_activations": False},
        {"dtype": "float16"},
    ],
)
def test_others(options: dict[str, object]) -> None:
    plan = plan_of(tiny_checkpoint("llama"), **options)
    assert not any(weight.balances for weight in plan.weights.values())


def test_biases_of_what_makes_the_input_are_divided_too() -> None:
    folder = tiny_checkpoint("llama", mlp_bias=True, attention_bias=True)
    plan = plan_of(folder)
    biases = {name: given for name, given in sides(plan).items() if "bias" in name}
    assert biases == {"up.bias": ["input"]}


def test_what_a_router_reads_is_left() -> None:
    plan = plan_of(tiny_checkpoint("mixtral"))
    assert sides(plan) == {name: DENSE[name] for name in ("attn_norm", "q", "k", "v")}


def test_a_second_reader_forbids_it() -> None:
    plan = plan_of(tiny_checkpoint("llama"))
    bare = replace(plan, weights={n: replace(w, balances=()) for n, w in plan.weights.items()})
    assert balance(bare, calibrated=True) == plan
    alone = plan_of(tiny_checkpoint("llama"), quantization_calibration=False)
    assert balance(bare).weights == alone.weights != plan.weights
    norm = next(op for op in plan.ops if isinstance(op, ops.AddNorm) and "layers.1.mlp" in str(op))
    read = replace(bare, ops=(*plan.ops, ops.Scale(norm.out, "elsewhere", 2.0)))
    left = sides(balance(read))
    assert set(left) == set(DENSE) - {"mlp_norm", "gate"}
    assert left["up"] == ["input"]


@pytest.mark.parametrize("calibrated", [True, False])
def test_what_is_read_makes_the_same_products(calibrated: bool) -> None:
    folder = tiny_checkpoint("gemma2")
    plan = plan_of(folder, quantization_calibration=calibrated)
    weights = plan.weights
    plain = {name: replace(weight, balances=()) for name, weight in weights.items()}
    squares = np.random.default_rng(1).exponential(size=(len(plan.buffers), 100))
    measured = {
        name: squares[i, : plan.buffers[name].cols] for i, name in enumerate(sorted(inputs(plan)))
    }
    assert bool(measured) == calibrated
    ours = open_weights(folder, plan.spec, weights, measured=measured)
    theirs = open_weights(folder, plan.spec, plain)

    def rows(name: str, of: object) -> np.ndarray:
        return np.asarray(of.get(f"layers.0.{name}"), np.float64)  # type: ignore[attr-defined]

    for norm, matrices in (("attn_norm", "qkv"), ("mlp_norm", ("gate",))):
        for matrix in matrices:
            assert (rows(matrix, ours) != rows(matrix, theirs)).any()
            np.testing.assert_allclose(
                rows(matrix, ours) * rows(norm, ours),
                rows(matrix, theirs) * rows(norm, theirs),
                rtol=1e-6,
            )
    ups = [rows("up", of) * rows("mlp_norm", of) for of in (ours, theirs)]
    np.testing.assert_allclose(
        rows("down", ours) @ ups[0], rows("down", theirs) @ ups[1], atol=1e-6
    )
    assert rows("o", ours).tolist() == rows("o", theirs).tolist()
