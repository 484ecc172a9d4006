"""Which prompts are worth a handover."""

from __future__ import annotations

import pytest

from penstock.engine.handover.rule import LEAST_TOKENS, Costs, Load, Measured


def test_it_pays_from_where_bytes_cost_less_than_tokens() -> None:
    # 1 ms a token here, 0.1 ms on the wire: 20 ms of overhead are saved by 23 tokens of 0.9 ms.
    costs = Costs(token_bytes=100e3, bandwidth=1e9, rate=1000.0, overhead_s=0.9)
    assert costs.least_tokens == 1000
    assert Costs(100e3, 1e9, 1000.0, 0.0009).least_tokens == LEAST_TOKENS
    # As fast as the wire, or faster: never.
    assert Costs(100e3, 1e9, 10_000.0).least_tokens is None
    assert Costs(100e3, 1e9, 20_000.0).least_tokens is None


@pytest.mark.parametrize("tokens", [200, 1000, 5000])
def test_it_is_the_break_even(tokens: int) -> None:
    costs = Costs(50e3, 200e6, 800.0, 0.1)
    least = costs.least_tokens
    assert least is not None
    saved = tokens / costs.rate
    cost = costs.overhead_s + tokens * costs.token_bytes / costs.bandwidth
    assert (tokens >= least) == (cost <= saved)


def test_waiting_is_what_is_before_and_the_prompt_itself() -> None:
    assert Load(1000, 500.0).wait_s(250) == 2.5
    assert Load(1000, 0.0).wait_s(250) == 0.0  # nobody knows
    assert Load(1000, 0.0).wait_s(250, 500.0) == 2.5
    assert Load(1000, 250.0).wait_s(250, 500.0) == 5.0


def test_rates_are_measured() -> None:
    rate = Measured(7.0)
    rate.add(0, 1.0)
    rate.add(1, 0.0)
    assert (rate.value, rate.known) == (7.0, False)
    rate.add(100, 1.0)
    assert (rate.value, rate.known) == (100.0, True)
    rate.add(200, 1.0)
    assert rate.value == pytest.approx(120.0)
