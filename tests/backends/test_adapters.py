"""Low-rank additions: the CPU against the reference, rows of every kind, and steps that are
refused."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.needs import needs_native
from support.tiny_plans import Chunk, broken, dummy_weights, make_spec, step_of, tokens_of

from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.adapters import Adapter, AdapterSlots, LowRank
from penstock.interface.executor import Executor, Limits, run
from penstock.interface.step import StepInput
from penstock.models.spec import DType
from penstock.plan.adapt import adapt, adapted_matrices
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan

pytestmark = needs_native

SLOTS = AdapterSlots(count=3, rank=20)
LIMITS = Limits(
    12, max_tokens=96, max_logit_rows=24, max_sequences=8, threads=2, max_hidden_rows=96
)
TOKENS = tokens_of(1, 60)
STEP = step_of(
    [
        Chunk(TOKENS, 0, 20, [1]),
        Chunk(TOKENS, 0, 33, [2, 3], hidden=(4, 30)),
        Chunk(TOKENS, 0, 1, [4]),
        Chunk(TOKENS, 0, 7, [5], rows=(2, 6), hidden=(0,)),
        Chunk(TOKENS, 0, 20, [6]),
    ]
)
USED = [1, -1, 2, 1, 0]


def drawn(plan: Plan, seed: int, rank: int, targets: str = "") -> Adapter:
    """A random adapter of the matrices whose names contain ``targets``."""
    rng = np.random.default_rng(seed)
    matrices = {}
    for name, (n, k) in adapted_matrices(plan).items():
        if targets in name:
            down = rng.standard_normal((rank, k)).astype(np.float32) * 0.2
            up = rng.standard_normal((n, rank)).astype(np.float32) * 0.2
            matrices[name] = LowRank(down, up, 0.5)
    return Adapter(f"{seed}", rank, matrices)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Executor, Executor]]:
    """A CPU executor and a reference one, with an adapter in each slot; the second has some of the
    matrices alone."""
    dtype: DType = request.param
    spec = make_spec(bias=True, tie=False)
    plan = adapt(fuse(lower(spec, dtype)), SLOTS)
    made = bind(plan, dummy_weights(spec, 3, dtype), LIMITS)
    reference = ReferenceExecutor(plan, dummy_weights(spec, 3, dtype), LIMITS)
    adapters = (drawn(plan, 1, 20), drawn(plan, 2, 5, "layers.1"), drawn(plan, 3, 17))
    for executor in (made, reference):
        assert executor.adapters is not None
        executor.adapters.write(2, adapters[0])  # what a slot had before does not matter
        for slot, adapter in enumerate(adapters):
            executor.adapters.write(slot, adapter)
    yield made, reference
    made.close()


def outputs(executor: Executor, step: StepInput) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    result = run(executor, step)
    assert result.hidden is not None
    return result.logits.copy(), result.hidden.astype(np.float32)


def test_as_the_reference_does(both: tuple[Executor, Executor]) -> None:
    made, reference = both
    step = broken(STEP, adapters=USED)
    ours, theirs = outputs(made, step), outputs(reference, step)
    close = 0.05 if np.array_equal(_rounded(ours[1]), ours[1]) else 1e-4
    for mine, its in zip(ours, theirs, strict=True):
        assert np.abs(mine - its).max() <= close * max(1.0, np.abs(its).max())
    plain = outputs(made, STEP)
    changed = np.abs(plain[0] - ours[0]).max(axis=1) > 0.01
    assert changed.tolist() == [True, False, True, True, True, True]


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_a_row_has_its_bits_beside_any_others(both: tuple[Executor, Executor]) -> None:
    made, _ = both
    logits, hidden = outputs(made, broken(STEP, adapters=USED))
    others = outputs(made, broken(STEP, adapters=[0, -1, 0, 1, 2]))
    plain = outputs(made, STEP)
    assert np.array_equal(logits[1], plain[0][1])
    assert np.array_equal(logits[3:5], others[0][3:5])
    assert np.array_equal(hidden[3:5], others[1][3:5])
    alone = outputs(made, broken(step_of([Chunk(TOKENS, 0, 20, [7])]), adapters=[0]))
    assert np.array_equal(logits[5], alone[0][0])


def test_steps_that_are_refused(both: tuple[Executor, Executor]) -> None:
    for executor in both:
        for wrong in ([0, 1], [0, 0, 0, 0, 3], [0, 0, 0, -2, 0]):
            with pytest.raises(ValueError, match=r"adapter|length"):
                run(executor, broken(STEP, adapters=wrong))


def test_no_room(both: tuple[Executor, Executor]) -> None:
    spec = make_spec()
    plain = bind(fuse(lower(spec, "float32")), dummy_weights(spec, 3, "float32"), LIMITS)
    assert plain.adapters is None
    with pytest.raises(ValueError, match="room for none"):
        run(plain, broken(STEP, adapters=USED))
    plain.close()
