"""What ranks and stages run, and send each other, beside the plans of an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from numpy.typing import NDArray
from support.checkpoints import tiny_checkpoint
from support.ranks import in_ranks
from support.sized_models import published, shape
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.errors import ConfigError
from penstock.interface.collective import ThreadRank
from penstock.interface.executor import Limits
from penstock.plan.costs import demand
from penstock.plan.lower import lower
from penstock.plan.ops import AllGather, Linear
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.sizing.parallel import (
    Collective,
    Parallelism,
    collectives,
    divided,
    handed_on,
    reduced,
    without_exchanges,
)
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec


def received(plan: Plan, ranks: int, counted: Counter[Collective]) -> float:
    """Bytes of the layers that a rank receives for a token that decodes, whatever joins ranks: of a
    gather what others have, of a sum twice as much of it."""
    times = {"all_gather": 1, "all_reduce": 2, "gather_to_first": 0}
    return sum(
        count * times[each.kind] * each.rows.times * each.row_bytes * (ranks - 1) / ranks
        for each, count in counted.items()
    )


@pytest.mark.parametrize(
    ("name", "gather", "reduce"),
    [
        ("llama-3.2-1b", (288, 432, 504), (128, 192, 224)),
        ("llama-3.1-8b", (1088, 1632, 1904), (512, 768, 896)),
    ],
)
def test_bytes_of_exchanges(name: str, gather: tuple[int, ...], reduce: tuple[int, ...]) -> None:
    """KiB that a rank receives for each token at two, four and eight ranks."""
    spec = shape(name)
    for ranks, ours, others in zip((2, 4, 8), gather, reduce, strict=True):
        (plan,) = divided(lower(spec), Parallelism(ranks))
        assert received(plan, ranks, collectives(plan)) == ours * 1024
        assert received(plan, ranks, reduced(plan, spec)) == others * 1024


@dataclass
class Counted:
    """A Collective that counts what a rank receives of others, in numbers of each size."""

    inner: ThreadRank
    gathered: list[int] = field(default_factory=list)
    """Columns of other ranks that each gather of all brought."""
    to_first: int = 0

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def world(self) -> int:
        return self.inner.world

    def all_gather(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]]:
        parts = self.inner.all_gather(columns)
        self.gathered.append(sum(p.shape[1] for p in parts) - columns.shape[1])
        return parts

    def gather_to_first(self, columns: NDArray[Any]) -> Sequence[NDArray[Any]] | None:
        parts = self.inner.gather_to_first(columns)
        if parts is not None:
            self.to_first += sum(p.shape[1] for p in parts) - columns.shape[1]
        return parts

    def when_given_up(self, call: Callable[[], None]) -> None:
        self.inner.when_given_up(call)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_rank_receives_what_is_counted(name: str, world: int) -> None:
    """Bytes of a token that ranks really exchange in a step, in bfloat16."""
    spec = make_spec(heads=(8, 4), tie=False)
    if name == "experts":
        spec = load_model_spec(tiny_checkpoint("qwen3_moe"))
    plan = lower(spec, "bfloat16")
    step = step_of([Chunk(tokens_of(1, 5), 0, 5, [0])])

    def exchanged(rank: ThreadRank) -> tuple[float, float]:
        own, counted = shard(plan, rank.rank, world), Counted(rank)
        limits = Limits(4, max_tokens=8, max_logit_rows=8, max_sequences=1, threads=1)
        weights = DummyWeights(own.weights, 3, "bfloat16")
        ReferenceExecutor(own, weights, limits, counted).run(step)
        ops = [op for op in own.ops if isinstance(op, AllGather)]
        assert len(ops) == len(counted.gathered)
        total = 0
        for op, columns in zip(ops, counted.gathered, strict=True):
            buffer = own.buffers[op.x]
            per_token = buffer.rows.times if buffer.rows.base == "T" else 1
            total += columns * per_token * (buffer.row_bytes // buffer.cols)
        return total, counted.to_first * 4

    (own,) = divided(plan, Parallelism(world))
    counts = collectives(own)
    logits = sum(each.row_bytes for each in counts if each.kind == "gather_to_first")
    found = in_ranks(world, exchanged)
    assert [total for total, _ in found] == [received(own, world, counts)] * world
    first, *others = (to_first for _, to_first in found)
    # Vocabularies need not divide evenly.
    assert first == pytest.approx(logits * (world - 1) / world, abs=4)
    assert others == [0] * (world - 1)


def test_ranks_have_equal_parts_together_the_whole() -> None:
    primitive = lower(shape("llama-3.2-1b"))
    whole, part, sixteenth = (
        [demand(plan, op) for op in without_exchanges(plan)]
        for ranks in (1, 4, 16)
        for plan in divided(primitive, Parallelism(ranks))
    )
    for all_of_it, a_quarter, less in zip(whole, part, sixteenth, strict=True):
        if all_of_it.work == "product":
            assert a_quarter.weight_bytes * 4 == all_of_it.weight_bytes
            assert a_quarter.multiply_adds * 4 == all_of_it.multiply_adds
        if all_of_it.work == "attention":
            assert a_quarter.token_bytes * 4 == all_of_it.token_bytes
            assert less.token_bytes * 8 == all_of_it.token_bytes  # of 8 KV heads


@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_have_the_whole_together(ranks: int) -> None:
    primitive = lower(shape("llama-3.2-1b"))
    (whole,) = divided(primitive, Parallelism(ranks))
    stages = divided(primitive, Parallelism(ranks, 3))
    products = [[op for op in plan.ops if isinstance(op, Linear)] for plan in (whole, *stages)]
    assert sum(map(len, products[1:])) == len(products[0])
    counts = Counter[Collective]()
    for plan in stages:
        counts += collectives(plan)
    assert counts == collectives(whole)
    assert [handed_on(plan) for plan in stages] == [2048 * 4, 2048 * 4, 0]
    sums = [sum(reduced(plan, whole.spec).values()) for plan in (whole, *stages)]
    assert sums[0] == 2 * 16 + (ranks > 1)  # and the logits
    assert sum(sums[1:]) == sums[0]


def test_uneven_ranks_are_those_with_most_to_do() -> None:
    """Two ranks have one and two of three KV heads."""
    primitive = lower(make_spec(heads=(6, 3)))
    (plan,) = divided(primitive, Parallelism(2))
    assert {layer.kv_heads for layer in plan.kv_layers} == {2}


def test_what_cannot_be_cut_is_refused() -> None:
    plan = lower(published("llama-2-7b"))
    with pytest.raises(ConfigError, match=r"33 ranks cannot share 32 heads.*at most 32 ranks"):
        divided(plan, Parallelism(33))
    with pytest.raises(ConfigError, match="the model has 32 layers; take at most 32 stages"):
        divided(plan, Parallelism(1, 64))
