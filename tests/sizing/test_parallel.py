"""What ranks send each other, beside the plans that they run."""

from __future__ import annotations

from collections.abc import Sequence
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
from penstock.plan.costs import PlanCosts
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import AllGather
from penstock.plan.shard import shard
from penstock.sizing.accelerator import Link
from penstock.sizing.parallel import Parallelism, check, rank_share, traffic
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec


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
        assert traffic(spec, Parallelism(ranks)).token_bytes == ours * 1024
        assert traffic(spec, Parallelism(ranks, exchange="reduce")).token_bytes == others * 1024


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


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_rank_receives_what_is_counted(name: str, world: int) -> None:
    """Bytes of a token that ranks really exchange in a step, in bfloat16."""
    spec = make_spec(heads=(8, 4), tie=False)
    if name == "experts":
        spec = load_model_spec(tiny_checkpoint("qwen3_moe"))
    plan = lower(spec, "bfloat16")
    step = step_of([Chunk(tokens_of(1, 5), 0, 5, [0])])

    def received(rank: ThreadRank) -> tuple[float, float]:
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

    expected = traffic(spec, Parallelism(world))
    found = in_ranks(world, received)
    assert [total for total, _ in found] == [expected.token_bytes] * world
    first, *others = (received for _, received in found)
    assert first == pytest.approx(expected.row_bytes, abs=4)  # vocabularies need not divide evenly
    assert others == [0] * (world - 1)


def test_ranks_have_equal_parts_together_the_whole() -> None:
    spec = shape("llama-3.2-1b")
    costs = PlanCosts.of(fuse(lower(spec)))
    for demand, _ in costs.counts:
        part = rank_share(demand, 4)
        if demand.work == "product":
            assert part.weight_bytes * 4 == demand.weight_bytes
            assert part.multiply_adds * 4 == demand.multiply_adds
        if demand.work == "attention":
            assert part.token_bytes * 4 == demand.token_bytes
            assert rank_share(demand, 16).token_bytes * 8 == demand.token_bytes  # of 8 KV heads


def test_latency_counts_every_exchange() -> None:
    link = Link("a link", gb_per_s=100.0, us=10.0, source="memory")
    spec = published("llama-2-70b")
    for exchange, waits in (("gather", 80 * 4), ("reduce", 80 * 2 * 2)):
        sent = traffic(spec, Parallelism(8, exchange=exchange))  # type: ignore[arg-type]
        assert sent.seconds(link, 0) == pytest.approx(waits * 1e-5)
    logits = sent.seconds(link, 0, 2) - sent.seconds(link, 0)
    assert logits == pytest.approx(1e-5 + 2 * 7 / 8 * 32000 * 4 / 100e9)
    stages = traffic(spec, Parallelism(1, 4))
    assert (stages.exchanges, stages.token_bytes) == (3, 3 * 8192 * 4)


def test_what_cannot_be_cut_is_refused() -> None:
    spec = published("llama-2-7b")
    with pytest.raises(ConfigError, match="3 ranks cannot share 32 attention heads"):
        check(spec, Parallelism(3))
    with pytest.raises(ConfigError, match="64 stages cannot share 32 layers"):
        check(spec, Parallelism(1, 64))
