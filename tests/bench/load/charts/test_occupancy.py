"""Batches, the KV cache and open requests over time."""

from __future__ import annotations

import pytest
from support.load_reports import Drawn, answer, drawn_report, report_of, rows, run_of

from penstock.bench.load.charts.occupancy import (
    KV_USED,
    RUNNING,
    batch_over_time,
    kv_over_time,
    open_requests,
    scraped,
)
from penstock.bench.load.result import Result
from penstock.bench.load.scrape import ServerMetrics


def test_the_fullest_batch_is_not_a_mean() -> None:
    """Each point that is drawn of more samples is a mean; of several results one is named."""

    def result(name: str, most: float) -> Result:
        running = [most if i == 500 else 2.0 for i in range(1000)]
        metrics = ServerMetrics(
            times_s=[i / 100 for i in range(1000)],
            varying={
                "vllm:num_requests_running": running,
                "vllm:kv_cache_usage_perc": [each / 1000 for each in running],
            },
            constant={},
            failed=0,
        )
        return Result(name, report_of([run_of([answer(0, 0.0, [9_000])], metrics=metrics)]))

    one, two = result("one", 40.0), result("two", 60.0)
    batch, cache = batch_over_time([one]), kv_over_time([one])
    assert batch.title == "The server has up to 40 requests in its batch"
    assert cache.title == "Requests hold up to 4 % of the KV cache"
    assert max(row["y"] for row in rows(batch)[0] if row["series"] == "running") < 40
    assert batch.table is not None
    assert [row[4] for row in batch.table.rows if row[2] == "running"] == ["40.0"]
    batch, cache = batch_over_time([one, two]), kv_over_time([one, two])
    assert batch.title == "The fullest batch has 60 requests (two, 4 at once)"
    assert cache.title == "Requests hold up to 6 % of the KV cache (two, 4 at once)"


def test_a_batch_that_no_server_tells() -> None:
    """What waits at a server is not what its client has open."""
    metrics = ServerMetrics(
        times_s=[0.0], varying={}, constant={"vllm:num_requests_waiting": 50.0}, failed=0
    )
    short = [answer(0, 0.0, [10_000_000]), *(answer(i, 5.0, [1]) for i in range(1, 4))]
    figure = batch_over_time([Result("x", report_of([run_of(short, metrics=metrics)]))])
    assert figure.title == "Up to 4 requests are open at once; no server tells its batch"


@pytest.mark.parametrize("server", ["penstock", "vllm", "sglang", "llamacpp"])
def test_metrics_of_servers(server: str) -> None:
    report = drawn_report(Drawn(metrics=server))
    batch, cache = batch_over_time([Result("x", report)]), kv_over_time([Result("x", report)])
    assert batch.title == "The server has up to 4 requests in its batch"
    assert cache.title == "Requests hold up to 8 % of the KV cache"
    assert max(row["y"] for row in rows(cache)[0]) == 8.0


def test_metrics_of_several_engines() -> None:
    """Numbers are added; of shares the greatest counts; what never changed is there, too."""
    metrics = ServerMetrics(
        times_s=[0.0, 1.0, 2.0],
        varying={
            'vllm:num_requests_running{engine="0"}': [1.0, None, 3.0],
            'vllm:kv_cache_usage_perc{engine="0"}': [0.1, 0.2, 0.1],
        },
        constant={
            'vllm:num_requests_running{engine="1"}': 2.0,
            'vllm:kv_cache_usage_perc{engine="1"}': 0.15,
            "other": 5.0,
        },
        failed=0,
    )
    running, used = scraped(metrics, RUNNING), scraped(metrics, KV_USED)
    assert running is not None
    assert used is not None
    assert running.values == [3.0, 2.0, 5.0]
    assert used.values == [15.0, 20.0, 15.0]
    assert scraped(metrics, ("none",)) is None
    assert scraped(None, RUNNING) is None


def test_open_requests() -> None:
    course = open_requests([answer(0, 0.0, [2_000_000]), answer(1, 1.0, [2_000_000])], 3.0)
    assert course is not None
    assert course.values[0] == 1
    assert course.values[len(course.values) // 2] == 2
    assert course.values[-1] == 0
