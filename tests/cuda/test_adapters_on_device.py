"""Adapters on a real GPU: against the reference, and from CUDA graphs with the bits of steps that
are launched op by op."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.adapted_plans import (
    LIMITS,
    SPEC,
    adapted,
    check_against,
    check_bits,
    check_refusals,
    drawn,
    fill_slots,
)
from support.tiny_plans import Chunk, broken, make_spec, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType, MlpSpec
from penstock.quant.choice import choose

GRAPHED = Limits(
    num_blocks=400,
    max_tokens=512,
    max_logit_rows=256,
    max_sequences=64,
    threads=1,
    rows_per_sequence=4,
    trees=True,
)


def wide() -> Any:
    """A model whose products are split along k, and take several tiles of columns."""
    spec = make_spec(dim=64, rope_dim=64, heads=(16, 4), tie=False)
    layer = replace(spec.layers[0], mlp=MlpSpec(2800, "silu", False))
    return replace(spec, hidden_size=1536, layers=(layer,) * 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_as_the_reference_does(dtype: DType, device: Any) -> None:
    from penstock.backends.cuda.bind import bind

    plan, weights = adapted(dtype, spec=SPEC)
    made, reference = bind(plan, weights, LIMITS, device), ReferenceExecutor(plan, weights, LIMITS)
    fill_slots(plan, made, reference)
    check_against(reference, made, {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}[dtype])
    check_bits(made)
    check_refusals(made)
    made.close()


@pytest.fixture(scope="module", params=["none", "int8", "int4"])
def executor(request: pytest.FixtureRequest, device: Any) -> Iterator[Any]:
    from penstock.backends.cuda.bind import bind

    schemes = choose(request.param, None, True, activations=False)
    plan, weights = adapted("bfloat16", schemes, wide())
    made = bind(plan, weights, GRAPHED, device)
    fill_slots(plan, made)
    yield made
    made.close()


def decoding(count: int, start: int = 40) -> list[Chunk]:
    """Sequences of two blocks of their own each, which decode a token."""
    return [
        Chunk(tokens_of(10 + i, 60), start, start + 1, [2 * i, 2 * i + 1]) for i in range(count)
    ]


def filled(executor: Any, count: int) -> None:
    """Compute the beginnings of these, each with its adapter."""
    for i, chunk in enumerate(decoding(count)):
        begun = step_of([replace(chunk, start=0, stop=40)])
        executor.run(broken(begun, adapters=[i % 4 - 1]))


def compare(executor: Any, step: StepInput) -> Any:
    """Replay a step, and launch it op by op; both write the same to the cache."""
    assert executor._buckets.holding(step) is not None
    replayed = executor.run(step).logits.copy()
    launched = executor._launch(step).logits[: len(step.logit_rows)].cpu().numpy()
    np.testing.assert_array_equal(replayed, launched)
    return replayed


@pytest.mark.parametrize("count", [1, 3, 8, 17, 64])
def test_a_graph_serves_any_mix_of_adapters(count: int, executor: Any) -> None:
    """The adapter of a row is what the graph reads, and so is what is in a slot."""
    filled(executor, count)
    own = np.arange(count) % 4 - 1
    step = step_of(decoding(count))
    mixed = compare(executor, broken(step, adapters=own))
    others = compare(executor, broken(step, adapters=(own + 2) % 4 - 1))
    none = compare(executor, step)
    np.testing.assert_array_equal(mixed[own < 0], none[own < 0])
    assert not (mixed[own >= 0] == none[own >= 0]).all(axis=1).any()
    assert not np.array_equal(mixed, others)
    for i in range(0, count, 7):
        alone = compare(executor, broken(step_of([decoding(count)[i]]), adapters=[own[i]]))
        np.testing.assert_array_equal(alone[0], mixed[i])


def test_a_graph_reads_what_was_written_last(executor: Any) -> None:
    filled(executor, 3)
    plan = adapted("bfloat16", spec=wide())[0]
    step = broken(step_of(decoding(3)), adapters=[0, 1, -1])
    before = compare(executor, step)
    executor.adapters.write(0, drawn(plan, 9, 3, "layers.0.q"))
    after = compare(executor, step)
    np.testing.assert_array_equal(before[1:], after[1:])
    assert not np.array_equal(before[0], after[0])
    fill_slots(plan, executor)
    np.testing.assert_array_equal(compare(executor, step), before)


def test_a_prompt_has_its_bits_however_it_is_cut(executor: Any) -> None:
    """Steps of many rows, whose splits share a program, come to the same as small ones."""
    tokens, blocks = tokens_of(1, 400), list(range(300, 313))
    found = []
    for cuts in ([400], [300, 400], [1, 17, 273, 399, 400]):
        for start, stop in zip([0, *cuts[:-1]], cuts, strict=True):
            part = step_of([Chunk(tokens, start, stop, blocks)])
            logits = executor.run(broken(part, adapters=[2])).logits
        found.append(logits[-1].copy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
