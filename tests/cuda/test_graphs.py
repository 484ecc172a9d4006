"""Steps from CUDA graphs have the bits of steps launched op by op, in any company."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.latents import over_latents
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of

from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import ExpertsSpec, LatentSpec, MlpSpec, ModelSpec, SharedExpertSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant.choice import choose

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
DENSE = MlpSpec(1376, "silu", False)
MIXTURE = ExpertsSpec(24, 4, 352, shared=SharedExpertSpec(352, gated=True))
CASES = [
    *((DENSE, scheme, None) for scheme in ("none", "int8", "int4")),
    *((MIXTURE, scheme, None) for scheme in ("none", "int4")),
    (DENSE, "none", LatentSpec(kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128, q_rank=None)),
]
"""MLPs, quantization, and latents in the place of keys and values."""


def name_of(case: tuple[MlpSpec | ExpertsSpec, str, LatentSpec | None]) -> str:
    mlp, quantization, latent = case
    return f"{type(mlp).__name__} {quantization}{' latents' if latent else ''}"


def wide_spec(mlp: MlpSpec | ExpertsSpec) -> ModelSpec:
    """A model whose products take several tiles in every direction."""
    spec = make_spec(dim=64, rope_dim=64, heads=(8, 2))
    layer = replace(spec.layers[0], mlp=mlp)
    return replace(spec, hidden_size=512, layers=(layer,) * 2)


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def executor(request: pytest.FixtureRequest, device: Any) -> Any:
    from penstock.backends.cuda.bind import bind

    mlp, quantization, latent = request.param
    spec = wide_spec(mlp)
    if latent is not None:
        spec = over_latents(spec, heads=16, latent=latent)
    schemes = choose(quantization, None, True, activations=False)
    plan = fuse(lower(spec, "bfloat16", quantization=schemes))
    made = bind(plan, dummy_weights(spec, 3, "bfloat16"), LIMITS, device)
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


def clear(executor: Any) -> None:
    for cache in executor._caches:
        for data in cache.arrays:
            data.zero_()


@pytest.mark.parametrize("drafted", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13, 17, 33, 64])
def test_a_replayed_step_has_the_bits_of_a_launched_one(
    count: int, drafted: int, executor: Any
) -> None:
    """Steps that decode, and those that verify drafts behind each token."""
    chunks = fill(executor, count)
    step = step_of([replace(c, stop=41 + drafted, rows=range(40, 41 + drafted)) for c in chunks])
    kept = snapshot(executor)
    assert executor._graphs is not None
    assert executor._buckets.holding(step) is not None
    compare(executor, step, kept)


@pytest.mark.parametrize("count", [0, 1, 5, 17, 33, 63])
@pytest.mark.parametrize("chunk", [7, 30, 90, 150])
@pytest.mark.parametrize("logits", [True, False])
def test_a_replayed_mixed_step_has_the_bits_of_a_launched_one(
    logits: bool, chunk: int, count: int, executor: Any
) -> None:
    """Steps that read a part of a prompt beside sequences that decode; then one that forked."""
    clear(executor)  # what is written shows
    chunks = fill(executor, count)
    before = LENGTH - chunk
    if before:
        executor.run(step_of([Chunk(ROW, 0, before, BLOCKS)]))
    read = Chunk(ROW, before, LENGTH, BLOCKS, rows=None if logits else [])
    step = step_of([*chunks, read])
    bucket = executor._buckets.holding(step)
    assert bucket is not None
    assert bucket.tokens >= count + chunk
    compare(executor, step, snapshot(executor))
    forked = step_of([*chunks, replace(read, blocks=[*BLOCKS[:-1], 399])], [(BLOCKS[-1], 399)])
    compare(executor, forked, snapshot(executor))


def test_a_mixed_replay_depends_on_nothing_before_it(executor: Any) -> None:
    """What a step of more sequences left in the places of the bucket is not seen."""
    company = fill(executor, 20)
    small = step_of([*company[:2], Chunk(ROW, 0, 60, BLOCKS)])
    large = step_of([*company, Chunk(ROW, 0, 108, BLOCKS, rows=range(90, 108))])
    kept = snapshot(executor)
    assert executor._buckets.holding(small).tokens <= executor._buckets.holding(large).tokens
    first = executor.run(small).logits.copy()
    for step in (large, step_of([Chunk(ROW, 0, 64, BLOCKS, rows=range(16))])):
        executor.run(step)
        restore(executor, kept)
        np.testing.assert_array_equal(executor.run(small).logits, first)


def compare(executor: Any, step: StepInput, kept: list[Any]) -> None:
    """Replay a step, and launch it op by op on the cache as it was: nothing differs."""
    import torch

    rows = len(step.logit_rows)
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
    """Logits of ROW, computed in chunks that end at ``cuts``, the last one beside ``company``."""
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
