"""Rooflines beside published figures, and what a search finds."""

from __future__ import annotations

from functools import cache

import pytest
from support.sized_models import published, shape

from penstock.errors import ConfigError
from penstock.models.spec import ModelSpec
from penstock.sizing.accelerator import Accelerator
from penstock.sizing.catalogue import Catalogue
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.parallel import Parallelism
from penstock.sizing.ranking import best
from penstock.sizing.roofline import PEAK
from penstock.sizing.search import Choices, Configuration, Demanded, Search
from penstock.sizing.serving import Load, Slo, Workload


def device(name: str) -> Accelerator:
    return Catalogue.load().find(name)


@cache
def model(name: str) -> SizedModel:
    spec: ModelSpec = published(name) if name.startswith("llama-2") else shape(name)
    return SizedModel(spec)


def search(
    name: str, demanded: Demanded, *devices: str, weights: str = "none", tensor: int | None = None
) -> Search:
    tensors = (1, 2, 4, 8) if tensor is None else (tensor,)
    choices = Choices([device(each) for each in devices], (weights,), tensor=tensors)  # type: ignore[arg-type]
    return Search(model(name), demanded, choices)


def one(found: list[Configuration]) -> Configuration:
    (only,) = found
    return only


CHAT = Demanded(Workload(2000, 300), 64, Slo(ttft=0.5, tpot=0.03))


def test_decode_of_an_8b_on_an_h100_is_its_weights_at_its_bandwidth() -> None:
    """The bound that is published for one stream, bytes over bandwidth: 8.03 billion parameters,
    less the embedding's 0.53, two bytes each, at 3.35 TB/s, about 4.5 ms (223 tokens/s)."""
    peak = Choices([device("H100")], ("none",), tensor=(1,), attained=PEAK)
    found = Search(model("llama-3.1-8b"), Demanded(Workload(1, 2), 1, Slo()), peak)
    time = found.time(device("H100"), Precision("none", "bfloat16"), Parallelism())
    bounds = time.bounds(Load(Workload(1, 2), 64).step(1, 0))
    assert bounds.binds == "memory"
    assert bounds.seconds == pytest.approx((8.03e9 - 0.525e9) * 2 / 3.35e12, rel=0.01)


def test_no_published_throughput_is_above_the_bound() -> None:
    """NVIDIA publishes 1,339 output tokens/s for Llama 3.3 70B in FP4 on one B200, at 2,048 tokens
    in and 128 out (TensorRT-LLM 1.0, https://the-dsvolk.github.io/ai-perf/ai-infra/
    inference_performance.html). Of FP4 we have the bytes, but not the arithmetic, which is 4 times
    that of bf16."""
    demanded = Demanded(Workload(2048, 128), 256, Slo())
    peak = Choices([device("B200")], ("int4",), tensor=(1,), attained=PEAK, replicas=1)
    found = one(Search(model("llama-2-70b"), demanded, peak).all())
    assert found.prefill.binds == "compute"
    assert 1339 / 4 < found.at_load.output_tps < 1339 * 2


def test_prompts_of_any_size_are_bound_by_arithmetic_at_the_ridge() -> None:
    found = search("llama-3.1-8b", CHAT, "H100", tensor=1)
    time = found.time(device("H100"), Precision("none", "bfloat16"), Parallelism())
    load = Load(Workload(2000, 300), 2048)
    assert time.bounds(load.step(0, 64)).binds == "memory"
    assert time.bounds(load.step(0, 1024)).binds == "compute"


def test_more_ranks_read_less_and_wait_more() -> None:
    demanded = Demanded(CHAT.workload, 64, Slo())
    made = search("llama-2-70b", demanded, "H200").all()
    found = {each.parallel.tensor: each for each in made}
    # But for the embeddings, which each rank keeps whole.
    assert 2 * found[8].room.weights - found[4].room.weights == pytest.approx(
        32000 * 8192 * 2, rel=0.01
    )
    assert found[8].at_load.tpot < found[4].at_load.tpot
    assert found[8].decode.communication > 0
    assert found[8].room.requests > 2 * found[4].room.requests


def test_the_cheapest_meets_the_objectives_with_the_fewest_replicas() -> None:
    made = search("llama-3.1-8b", CHAT, "L40S", "H100")
    found = made.all()
    chosen = best(found)
    assert chosen.meets
    assert chosen.cheapest.usd_per_hour == min(c.usd_per_hour or 0 for c in found if c.meets)
    assert chosen.fastest.at_load.latency == min(c.at_load.latency for c in found if c.meets)
    split = next(c for c in found if c.device.name == "L40S" and c.replicas > 1 and c.meets)
    least = split.replicas
    fewer = Choices(
        [device("L40S")], ("none",), tensor=(split.parallel.tensor,), replicas=least - 1
    )
    assert not one(Search(model("llama-3.1-8b"), CHAT, fewer).all()).meets


def test_costs_of_tokens_are_the_price_of_the_time() -> None:
    found = one(search("llama-3.1-8b", CHAT, "H100", tensor=1).all())
    cost, at = found.usd_per_million, found.at_load
    assert cost is not None
    per_second = (cost[0] * at.input_tps + cost[1] * at.output_tps) / 1e6
    assert per_second * 3600 == pytest.approx(2.95)


def test_objectives_that_nothing_meets_give_the_nearest() -> None:
    demanded = Demanded(CHAT.workload, 64, Slo(tpot=0.0001))
    chosen = best(search("llama-3.1-8b", demanded, "L4", "H100").all())
    assert not chosen.meets
    assert chosen.cheapest.device.name == "H100"
    assert chosen.cheapest.excess > 1


def test_models_that_fit_nowhere_are_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"nearest is 4 x T4 .*needs? \d+.*has 15"):
        search("llama-2-70b", CHAT, "T4").all()
    with pytest.raises(ConfigError, match=r"8 x Laptop \(TP 8\) are more.*at most 1"):
        search("llama-3.1-8b", CHAT, "Laptop", tensor=8).all()


def test_cpus_round_what_they_multiply_and_gpus_do_not() -> None:
    sized = model("llama-3.2-1b")
    kinds = {
        kind: {
            d.arithmetic
            for d, _ in sized.plan(kind, precision, 512).costs.counts
            if d.form == "int8"
        }
        for kind, precision in (
            ("cpu", Precision("int8", "bfloat16")),
            ("gpu", Precision("int8", "bfloat16")),
        )
    }
    assert kinds == {"cpu": {"int8"}, "gpu": {"bf16"}}
