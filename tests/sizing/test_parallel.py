"""What ranks send each other, beside the plans that they run."""

from __future__ import annotations

import pytest
from support.sized_models import published, shape

from penstock.errors import ConfigError
from penstock.plan.costs import PlanCosts
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import AllGather
from penstock.plan.shard import shard
from penstock.sizing.accelerator import Link
from penstock.sizing.parallel import Parallelism, check, rank_share, traffic


@pytest.mark.parametrize(
    ("name", "gather", "reduce"),
    [
        ("llama-3.2-1b", (224, 336, 392), (128, 192, 224)),
        ("llama-3.1-8b", (832, 1248, 1456), (512, 768, 896)),
    ],
)
def test_bytes_of_exchanges(name: str, gather: tuple[int, ...], reduce: tuple[int, ...]) -> None:
    """KiB that a rank receives for each token at two, four and eight ranks."""
    spec = shape(name)
    for ranks, ours, others in zip((2, 4, 8), gather, reduce, strict=True):
        assert traffic(spec, Parallelism(ranks)).token_bytes == ours * 1024
        assert traffic(spec, Parallelism(ranks, exchange="reduce")).token_bytes == others * 1024


def test_a_rank_gathers_what_its_plan_gathers() -> None:
    """The sharded plan's columns of a layer; at two ranks one receives as many as it has."""
    spec = shape("llama-3.2-1b")
    plan = shard(lower(spec), 0, 2)
    gathers = [op for op in plan.ops if isinstance(op, AllGather) and op.out[:9] == "layers.5."]
    columns = sum(plan.buffers[op.x].cols for op in gathers)
    per_layer = traffic(spec, Parallelism(2)).token_bytes / len(spec.layers)
    assert columns * 2 == per_layer


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
    stages = traffic(spec, Parallelism(1, 4))
    assert (stages.exchanges, stages.token_bytes) == (3, 3 * 8192 * 4)


def test_what_cannot_be_cut_is_refused() -> None:
    spec = published("llama-2-7b")
    with pytest.raises(ConfigError, match="3 ranks cannot share 32 attention heads"):
        check(spec, Parallelism(3))
    with pytest.raises(ConfigError, match="64 stages cannot share 32 layers"):
        check(spec, Parallelism(1, 64))
