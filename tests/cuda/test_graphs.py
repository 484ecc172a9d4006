"""Steps from CUDA graphs have the bits of steps launched op by op, in any company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.interface.executor import Limits
from penstock.models.spec import MlpSpec, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant.choice import choose
from penstock.weights.dummy import DummyWeights

LIMITS = Limits(
    num_blocks=400,
    max_tokens=256,
    max_logit_rows=256,
    max_sequences=64,
    threads=1,
    rows_per_sequence=4,
    trees=True,
)
LENGTH = 150
ROW = tokens_of(1, LENGTH)
BLOCKS = [390, 391, 392, 393, 394]
SCHEMES = ["none", "int8", "int4"]


def wide_spec() -> ModelSpec:
    """Of products that take several tiles in every direction."""
    spec = make_spec(dim=64, rope_dim=64, heads=(8, 2))
    layer = replace(spec.layers[0], mlp=MlpSpec(1376, "silu", False))
    return replace(spec, hidden_size=512, layers=(layer,) * 2)


@pytest.fixture(scope="module", params=SCHEMES)
def executor(request: pytest.FixtureRequest, device: Any) -> Any:
    from penstock.backends.cuda.bind import bind

    spec = wide_spec()
    schemes = choose(request.param, None, True, activations=False)
    plan = fuse(lower(spec, "bfloat16", quantization=schemes))
    made = bind(plan, DummyWeights(spec, 3, "bfloat16"), LIMITS, device)
    yield made
    made.close()


def others(count: int, length: int) -> list[Chunk]:
    """Sequences of two blocks of their own each, computed up to ``length``."""
    return [Chunk(tokens_of(10 + i, 60), 0, length, [2 * i, 2 * i + 1]) for i in range(count)]


def fill(executor: Any, count: int) -> list[Chunk]:
    """Compute the beginnings of ``count`` sequences; the decode steps that follow."""
    for chunk in others(count, 40):
        executor.run(step_of([chunk]))
    return [replace(chunk, start=40, stop=41) for chunk in others(count, 40)]


def snapshot(executor: Any) -> list[Any]:
    return [data.clone() for cache in executor._caches for data in cache.arrays]


def restore(executor: Any, kept: list[Any]) -> None:
    arrays = [data for cache in executor._caches for data in cache.arrays]
    for data, old in zip(arrays, kept, strict=True):
        data.copy_(old)


@pytest.mark.parametrize("drafted", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 17, 33, 64])
def test_a_replayed_step_has_the_bits_of_a_launched_one(
    count: int, drafted: int, executor: Any
) -> None:
    """Steps that decode, and those that verify drafts behind each token."""
    import torch

    from penstock.backends.cuda.graphs import bucket_of

    chunks = fill(executor, count)
    step = step_of([replace(c, stop=41 + drafted, rows=range(40, 41 + drafted)) for c in chunks])
    rows = count * (1 + drafted)
    kept = snapshot(executor)
    assert executor._graphs is not None
    assert bucket_of(step, executor._buckets) is not None
    replayed = executor.run(step)
    logits, argmax = replayed.logits.copy(), replayed.argmax.copy()
    written = snapshot(executor)
    restore(executor, kept)
    launched, launched_argmax, *_ = executor._launch(step)
    np.testing.assert_array_equal(logits, launched[:rows].cpu().numpy())
    np.testing.assert_array_equal(argmax, launched_argmax[:rows, 0].cpu().numpy())
    for data, expected in zip(snapshot(executor), written, strict=True):
        assert torch.equal(data, expected)
    assert any(not torch.equal(a, b) for a, b in zip(kept, written, strict=True))


def test_a_replay_depends_on_nothing_before_it(executor: Any) -> None:
    """Buckets share their memory: a larger step between two equal ones changes nothing."""
    chunks = fill(executor, 64)
    kept = snapshot(executor)
    small = executor.run(step_of(chunks[:3])).logits.copy()
    executor.run(step_of(chunks))
    restore(executor, kept)
    np.testing.assert_array_equal(executor.run(step_of(chunks[:3])).logits, small)


def last_logits(executor: Any, cuts: list[int], company: list[Chunk]) -> NDArray[np.float32]:
    """Of ROW, computed in chunks that end at ``cuts``, the last one beside ``company``."""
    for start, stop in zip([0, *cuts[:-1]], cuts, strict=True):
        beside = company if stop == cuts[-1] else []
        logits = executor.run(step_of([*beside, Chunk(ROW, start, stop, BLOCKS)])).logits
    row: NDArray[np.float32] = logits[-1].copy()
    return row


@pytest.mark.parametrize("count", [0, 1, 2, 7, 16, 30, 63])
def test_a_row_is_bitwise_its_own_in_every_bucket(count: int, executor: Any) -> None:
    alone = last_logits(executor, [LENGTH], [])
    company = fill(executor, count)
    decoded = last_logits(executor, [LENGTH - 1, LENGTH], company)
    np.testing.assert_array_equal(decoded, alone)


@pytest.mark.parametrize("cuts", [[64, LENGTH], [1, 2, 3, LENGTH], [32, 33, 100, 149, LENGTH]])
def test_a_row_is_bitwise_its_own_however_it_is_cut(cuts: list[int], executor: Any) -> None:
    alone = last_logits(executor, [LENGTH], [])
    np.testing.assert_array_equal(last_logits(executor, cuts, []), alone)
    company = [replace(chunk, stop=40) for chunk in others(3, 40)]  # prompts, read beside it
    np.testing.assert_array_equal(last_logits(executor, cuts, company), alone)
