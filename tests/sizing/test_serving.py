"""The steady state of in-flight batching, on machines whose steps are easy to count."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.plan.costs import StepSize
from penstock.sizing.serving import Estimate, Load, Slo, Speculation, Workload, estimate


@dataclass(frozen=True)
class Clock:
    """Steps of a fixed time, and so much for each token."""

    fixed: float
    token: float = 0.0

    def seconds(self, size: StepSize) -> float:
        return self.fixed + self.token * size.tokens


def steady(
    clock: Clock, concurrency: int, workload: Workload, budget: int = 512, places: int = 10**6
) -> Estimate:
    return estimate(clock, Load(workload, budget), concurrency, places)


def test_steps_of_one_length_are_the_time_between_tokens() -> None:
    """One request alone is read in one step; others come in the middle of a step on average."""
    found = steady(Clock(0.01), 1, Workload(100, 1000))
    assert found.tpot == pytest.approx(0.01)
    assert found.ttft == pytest.approx(0.01)
    assert found.latency == pytest.approx(found.ttft + 999 * 0.01)
    assert steady(Clock(0.01), 1000, Workload(100, 10000), 4096).ttft > 0.0149


def test_a_prompt_does_not_come_between_its_own_tokens() -> None:
    alone, two = (steady(Clock(0.01, 1e-4), n, Workload(500, 100)) for n in (1, 2))
    assert alone.tpot == pytest.approx(0.0101)
    assert two.tpot > 1.03 * alone.tpot


def test_little_s_law_holds() -> None:
    """Requests that are open are their rate times their time, at any load."""
    for concurrency in (1, 4, 16, 64, 256):
        found = steady(Clock(0.01, 1e-4), concurrency, Workload(500, 100))
        assert found.requests_per_s * found.latency == pytest.approx(concurrency, rel=0.1)


def test_prompts_that_fill_the_budget_bound_the_rate() -> None:
    """Steps of 512 tokens cannot serve more than 512 tokens each, prompts and outputs."""
    found = steady(Clock(0.01), 5000, Workload(1000, 10))
    tokens = found.input_tps + found.output_tps
    assert 0.9 * 512 / 0.01 < tokens <= 512 / 0.01
    assert found.ttft > 0.5 * found.latency


def test_requests_without_a_place_wait() -> None:
    few, all_ = (steady(Clock(0.01), 64, Workload(100, 100), places=n) for n in (16, 64))
    assert few.output_tps < all_.output_tps / 3
    assert few.ttft > 2 * all_.ttft
    assert few.requests_per_s * few.latency == pytest.approx(64, rel=0.05)


def test_drafts_give_their_mean_length_and_cost_their_tokens() -> None:
    speculation = Speculation(tokens=4, accept=0.5, cost=0.1)
    assert speculation.length == pytest.approx(1 + 0.5 + 0.25 + 0.125 + 0.0625)
    assert Speculation(4, 1.0).length == 5
    assert Speculation().length == 1
    found = steady(Clock(0.01), 1, Workload(10, 1000, speculation))
    assert found.tpot == pytest.approx(0.01 * 1.4 / speculation.length)


def test_objectives_are_missed_by_the_worst() -> None:
    found = steady(Clock(0.01), 1, Workload(100, 1000))
    assert Slo().excess(found) == 0
    assert Slo(tpot=0.005).excess(found) == pytest.approx(2)
    assert Slo(tpot=0.005, ttft=1.0).excess(found) == pytest.approx(2)
    assert Slo(tpot=0.02, latency=1.0).excess(found) == pytest.approx(found.latency)


def test_a_step_has_the_rows_and_contexts_of_its_load() -> None:
    step = Load(Workload(100, 20, Speculation(2, 0.5)), 512).step(3, 250)
    assert step.tokens == 3 * 3 + 250
    assert step.context_lens.tolist() == [110] * 3 + [100, 100, 75]
    assert step.positions[:3].tolist() == [107, 108, 109]
    assert step.positions[-1] == 74
