"""Exchanges over links and networks, worked out by hand, and steps of models divided over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sized_models import published, shape

from penstock.errors import ConfigError
from penstock.sizing.accelerator import Accelerator, Link, Network
from penstock.sizing.catalogue import Catalogue
from penstock.sizing.fabric import Fabric
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.parallel import Exchange, Parallelism
from penstock.sizing.pipeline import Part, PipelineTime
from penstock.sizing.roofline import PEAK, CostTable, Roofline
from penstock.sizing.serving import Load, Workload

LINK = Link("a link", gb_per_s=100.0, us=10.0, source="memory")


def network(per: Literal["device", "machine"] = "device", gb_per_s: float = 10.0) -> Network:
    return Network("a network", gb_per_s, 50.0, "memory", per)


def test_a_gather_in_a_machine() -> None:
    """Each of eight ranks has 1 of 8 MB, receives 7, in 70 us, and waits 10."""
    assert Fabric(LINK, 8).seconds("all_gather", 8e6, 8) == pytest.approx(80e-6)
    assert Fabric(LINK, 8).seconds("all_reduce", 8e6, 8) == pytest.approx(160e-6)
    assert Fabric(LINK, 8).seconds("all_gather", 8e6, 1) == 0


def test_a_gather_between_machines() -> None:
    """There are 16 MB on two machines of eight: a rank receives one of those 8 that the other
    machine has, in 100 us and 50, and 14 of its neighbours, in 140 us and 10."""
    two = Fabric(LINK, 8, network())
    assert two.seconds("all_gather", 16e6, 16) == pytest.approx(300e-6)
    # Reduce and scatter 14 MB, reduce 2 MB in a ring of two, and gather what there is.
    assert two.seconds("all_reduce", 16e6, 16) == pytest.approx(600e-6)
    # One interface takes all 8 MB of a machine.
    assert Fabric(LINK, 8, network("machine")).seconds("all_gather", 16e6, 16) == pytest.approx(
        800e-6 + 50e-6 + 140e-6 + 10e-6
    )
    # Machines of one device: nothing but the network.
    alone = Fabric(None, 1, network("machine"))
    assert alone.seconds("all_gather", 16e6, 4) == pytest.approx(1200e-6 + 50e-6)


def test_stages_hand_on() -> None:
    within, between = Parallelism(2, 8), Parallelism(8, 4)
    fabric = Fabric(LINK, 8, network())
    # Four stages of two ranks share a machine: the fourth hands on to another one.
    assert fabric.handed_on(1e6, within, 0) == pytest.approx(10e-6 + 10e-6)
    # Each of two ranks receives half by the network, and the other half of its neighbour.
    assert fabric.handed_on(1e6, within, 3) == pytest.approx(50e-6 + 50e-6 + 5e-6 + 10e-6)
    assert fabric.handed_on(1e6, between, 0) == pytest.approx(12.5e-6 + 50e-6 + 8.75e-6 + 10e-6)
    assert fabric.handed_on(0.0, between, 3) == 0
    assert [fabric.machines(each) for each in (within, between, Parallelism())] == [2, 4, 1]
    assert Fabric(LINK, 8, network()).machines(Parallelism(16, 2)) == 4
    assert Fabric(None, 1, network()).machines(Parallelism(2, 3)) == 6


def test_what_is_not_joined_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"16 x H100 \(TP 16\) are more than one machine.*most 8"):
        Fabric(LINK, 8).check(Parallelism(16), "H100")
    with pytest.raises(ConfigError, match="12 ranks do not fill machines of 8 H100; take 8 or 16"):
        Fabric(LINK, 8, network()).check(Parallelism(12), "H100")
    Fabric(LINK, 8, network()).check(Parallelism(16, 4), "H100")
    Fabric(LINK, 8).check(Parallelism(4, 2), "H100")


def time_of(
    model: SizedModel,
    device: Accelerator,
    parallel: Parallelism,
    joined: Network | None = None,
) -> PipelineTime:
    fabric = Fabric.of(device, joined)
    parts = model.parts(device.kind, Precision("none", model.spec.dtype), 2048, parallel)
    shares = [Part.of(each, model.spec, parallel, fabric) for each in parts]
    return PipelineTime.of(shares, device, fabric, parallel)


STEPS = Load(Workload(2048, 2), 2048)
DECODE, CHUNK = STEPS.step(16, 0), STEPS.step(0, 2048)


def test_one_rank_and_one_stage_are_no_division() -> None:
    model, device = SizedModel(shape("llama-3.2-1b")), Catalogue.load().find("H100")
    costs = model.plan("gpu", Precision("none", model.spec.dtype), 2048).costs
    alone = Roofline.of(CostTable(costs), device)
    for size in (DECODE, CHUNK):
        assert time_of(model, device, Parallelism()).bounds(size) == alone.bounds(size)


def test_latency_counts_every_exchange() -> None:
    """Four gathers or two sums a layer, each of two hops, and one gather of logits."""
    model, device = SizedModel(published("llama-2-70b")), Catalogue.load().find("H100")
    device = msgspec.structs.replace(device, link=Link("a link", 1e5, 10.0, "memory"))
    ways: dict[Exchange, int] = {"gather": 80 * 4 + 1, "reduce": 80 * 2 * 2 + 1}
    for exchange, waits in ways.items():
        sent = time_of(model, device, Parallelism(8, exchange=exchange)).bounds(DECODE)
        assert sent.communication == pytest.approx(waits * 1e-5, rel=0.01)


def test_a_stage_that_takes_longer_holds_all_steps_up() -> None:
    model, device = SizedModel(shape("llama-3.2-1b")), Catalogue.load().find("H100")
    time = time_of(model, device, Parallelism(1, 4))
    each = [stage.seconds(DECODE) for stage in time.stages]
    ways = sum(time.hand_over(stage, 16) for stage in range(4))
    assert time.seconds(DECODE) == pytest.approx(sum(each) + ways)
    assert time.flying(4).seconds(DECODE) == pytest.approx(max(4 * max(each), sum(each) + ways))
    assert max(each) == each[-1]  # it has the output matrix, and the host's work
    # All but the last stage and the host's time are the work of one process.
    alone = time_of(model, device, Parallelism()).bounds(DECODE)
    through = time.bounds(DECODE)
    assert through.memory + through.compute == pytest.approx(alone.memory + alone.compute)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(2, 1), (8, 1), (16, 1), (1, 4), (8, 4), (4, 8), (1, 16)]),
    st.sampled_from(["device", "machine"]),
    st.sampled_from(["gather", "reduce"]),
    st.floats(0.05, 500.0),
    st.floats(1.0, 10.0),
)
def test_more_bandwidth_is_never_slower(
    shape_of: tuple[int, int],
    per: Literal["device", "machine"],
    exchange: Exchange,
    gb_per_s: float,
    times: float,
) -> None:
    model, device = _MODEL, Catalogue.load().find("H100 PCIe")
    parallel = Parallelism(*shape_of, exchange)
    for size in (DECODE, CHUNK):
        slow, fast = (
            time_of(model, device, parallel, network(per, rate)).seconds(size)
            for rate in (gb_per_s, gb_per_s * times)
        )
        assert fast <= slow
        link = msgspec.structs.replace(device.link, gb_per_s=54 * times)
        faster = msgspec.structs.replace(device, link=link)
        linked = time_of(model, faster, parallel, network(per, gb_per_s))
        assert linked.seconds(size) <= slow
        bound = replace(linked, stages=tuple(replace(s, attained=PEAK) for s in linked.stages))
        assert bound.seconds(size) <= linked.seconds(size)


_MODEL = SizedModel(shape("llama-3.2-1b"))
"""One of which plans are kept between examples."""
