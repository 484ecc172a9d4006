"""Figures of records whose times are given."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.confidence import distribution, repeated
from penstock.bench.load.figures import figures, samples_of, steady_part
from penstock.bench.load.goodput import good
from penstock.bench.load.outcome import STOPPED
from penstock.bench.load.record import RequestRecord
from penstock.errors import ConfigError
from penstock.service_level import Limit, parse_limit


def record(sent_s: float = 0.0, gaps_us: list[int] | None = None, **more: object) -> RequestRecord:
    gaps = [100_000, 20_000, 40_000] if gaps_us is None else gaps_us
    fields = {
        "index": 0,
        "conversation": "0",
        "turn": 0,
        "scheduled_s": sent_s,
        "sent_s": sent_s,
        "end_s": sent_s + sum(gaps) / 1e6,
        "gaps_us": gaps,
        "output_tokens": len(gaps),
        "input_tokens": 10,
    }
    return msgspec.convert(fields | more, RequestRecord)


def test_every_quantity_has_an_entry_for_each_answer() -> None:
    some = [record(), record(reasoning_chunks=1), record(gaps_us=[5]), record(input_tokens=None)]
    assert {name: len(each) for name, each in samples_of(some).items() if len(each) != 4} == {}


def test_one_request() -> None:
    """The definitions, as vLLM and AIPerf have them."""
    one = record(output_tokens=5)  # five tokens in three chunks
    assert one.ttft_s == pytest.approx(0.1)
    assert one.ttst_s == pytest.approx(0.02)
    assert one.e2el_s == pytest.approx(0.16)
    assert one.tpot_s == pytest.approx((0.16 - 0.1) / 4)
    assert one.ttfo_s == pytest.approx(0.1)
    assert record(reasoning_chunks=2).ttfo_s == pytest.approx(0.16)
    assert record(reasoning_chunks=3).ttfo_s is None
    assert record(gaps_us=[5]).tpot_s is None
    assert record(gaps_us=[]).ttft_s is None


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(0, 10**7), min_size=2, max_size=40),
    st.integers(0, 40),
)
def test_definitions_hold_together(gaps: list[int], extra: int) -> None:
    one = record(gaps_us=gaps, output_tokens=len(gaps) + extra)
    assert one.ttft_s is not None
    assert one.tpot_s is not None
    assert one.e2el_s is not None
    assert one.ttft_s + one.tpot_s * (one.tokens - 1) == pytest.approx(one.e2el_s)
    found = figures([one]).distributions
    assert found["itl"].summary.count == len(gaps) - 1
    assert found["itl"].summary.mean * (len(gaps) - 1) + one.ttft_s == pytest.approx(one.e2el_s)


def test_a_run() -> None:
    records = [
        record(0.0, cached_tokens=5),
        record(0.5, cached_tokens=0, output_tokens_asked=4),
        record(1.0, gaps_us=[], error="reset", message="gone", output_tokens=None),
        record(1.5, gaps_us=[50_000], error=STOPPED, output_tokens=None),
    ]
    found = figures(records, (Limit("ttft", 0.2),), 0.0, 2.0)
    assert (found.requests, found.completed, found.failed, found.stopped) == (4, 2, 1, 1)
    assert found.completed_per_s == 1.0
    assert found.output_tokens_per_s == pytest.approx(7 / 2)
    assert found.cached_share == pytest.approx(5 / 20)
    assert found.errors == {"reset": 1}
    assert found.error_messages == {"reset": "gone"}
    assert found.good == 2
    assert found.good_share == pytest.approx(2 / 3)
    assert found.goodput_per_s == 1.0
    assert found.output_length_mismatches == 1


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.floats(0.1, 12))
def test_parts_add_up(sent: list[float], cut: float) -> None:
    """Tokens are of one part or of the other, also those of a request that is in both."""
    records = [record(at) for at in sent]
    end = max(each.end_s for each in records) + 0.001
    if cut >= end:
        return
    whole, first, second = (
        figures(records, (), begin, stop) for begin, stop in ((0, end), (0, cut), (cut, end))
    )
    assert whole.output_tokens_per_s is not None
    assert first.output_tokens_per_s is not None
    assert second.output_tokens_per_s is not None
    tokens = first.output_tokens_per_s * cut + second.output_tokens_per_s * (end - cut)
    assert tokens == pytest.approx(whole.output_tokens_per_s * end, abs=len(sent) * 1.01)
    assert tokens >= 3 * len(sent) - 1e-6


def test_the_steady_part() -> None:
    records = [record(at / 10) for at in range(100)]
    assert steady_part(records) == (pytest.approx(0.16), pytest.approx(9.9))
    assert steady_part([record(0.0), record(0.0)]) is None
    assert steady_part([]) is None


def test_discrepancies() -> None:
    assert record(output_tokens=2).discrepancies
    assert record(output_tokens=9, output_tokens_asked=8).discrepancies
    assert record(cached_tokens=11).discrepancies
    assert not record(output_tokens_asked=3, cached_tokens=10).discrepancies
    assert record(output_tokens=None).tokens == 3
    found = figures([record(output_tokens=None), record(output_tokens=2)])
    assert found.without_usage == 1
    assert list(found.discrepancies.values()) == [1]


def test_patterns() -> None:
    found = figures([record(pattern="a"), record(pattern="b"), record(pattern="b")])
    assert {name: each["ttft"].summary.count for name, each in found.patterns.items()} == {
        "a": 1,
        "b": 2,
    }
    assert not figures([record(pattern="a")]).patterns


def test_nothing_came() -> None:
    found = figures([])
    assert found.completed_per_s is None
    assert not found.distributions
    msgspec.json.encode(found)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1e3), max_size=5), min_size=1, max_size=30))
def test_intervals_hold_a_figure_s_range(groups: list[list[float]]) -> None:
    found = distribution(groups)
    flat = [value for group in groups for value in group]
    if not flat:
        assert found is None
        return
    assert found is not None
    for interval in (found.mean, found.p50, found.p90, found.p99):
        assert min(flat) - 1e-9 <= interval.low <= interval.high <= max(flat) + 1e-9


def test_an_interval_covers_the_mean() -> None:
    """About 95 % of the intervals hold the mean that samples were drawn with."""
    generator = np.random.default_rng(1)
    held = 0
    for seed in range(60):
        found = distribution([[value] for value in generator.normal(10, 2, 60)], seed)
        assert found is not None
        held += found.mean.low <= 10 <= found.mean.high
    assert 50 <= held <= 60


def test_groups_that_are_alike_widen_an_interval() -> None:
    """Ten equal gaps of a request say no more than one."""
    values = np.random.default_rng(2).normal(10, 2, 50).tolist()
    one, ten = distribution([[v] for v in values]), distribution([[v] * 10 for v in values])
    assert one is not None
    assert ten is not None
    width = one.mean.high - one.mean.low
    assert ten.mean.high - ten.mean.low == pytest.approx(width, rel=1e-6)


def test_repeats() -> None:
    assert repeated([1.0]) is None
    found = repeated([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.runs) == (2.0, 3)
    assert found.high - found.mean == pytest.approx(4.302653 / 3**0.5)


def test_limits() -> None:
    assert parse_limit("ttft:500ms") == Limit("ttft", 0.5)
    assert parse_limit("tpot:30") == Limit("tpot", 0.03)
    assert parse_limit("request_latency:2s") == Limit("e2el", 2.0)
    assert good(record(), [Limit("ttft", 0.1), Limit("e2el", 0.2)])
    assert not good(record(), [Limit("ttft", 0.09)])
    assert not good(record(error="reset"), [])
    for text in ("ttft", "ttft:", "ttft:-1", "ttft:0", "speed:3", "ttft:3h"):
        with pytest.raises(ConfigError, match="--slo"):
            parse_limit(text)
