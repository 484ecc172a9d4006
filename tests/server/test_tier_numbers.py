"""What servers say of tokens that came from below the KV cache."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.frontend.outputs import RequestMetrics, RequestOutput
from penstock.interface.messages import EngineStats, TierName, TierStats
from penstock.server.metric_families import MetricFamilies
from penstock.server.metrics import Counts, ServerState, render
from penstock.server.openai.answer_structs import usage


def output(cached: int, restored: int, host: int) -> RequestOutput:
    return RequestOutput(
        *("r", None, [1] * 200, [], True, None, cached, RequestMetrics(0.0)),
        num_restored_tokens=restored,
        num_host_tokens=host,
    )


@pytest.mark.parametrize(
    ("numbers", "details"),
    [
        ((160, 128, 96), {"cached_tokens": 160, "disk_tokens": 32, "host_tokens": 96}),
        ((160, 64, 0), {"cached_tokens": 160, "disk_tokens": 64}),
        ((160, 64, 64), {"cached_tokens": 160, "host_tokens": 64}),
        ((160, 0, 0), {"cached_tokens": 160}),
    ],
)
def test_usage_tells_the_tiers_apart(numbers: Any, details: Any) -> None:
    assert msgspec.to_builtins(usage([output(*numbers)]).prompt_tokens_details) == details


def tier(name: TierName, value: int) -> TierStats:
    numbers = {
        field.name: value
        for field in msgspec.structs.fields(TierStats)
        if field.name not in ("name", "fetch_seconds")
    }
    return TierStats(name=name, **numbers)


REQUIRED = (
    *("running", "waiting", "kv_blocks_total", "kv_blocks_used", "prefix_queries", "prefix_hits"),
    *("preemptions", "steps", "tokens_computed", "tokens_generated"),
)


def test_each_tier_has_its_metrics() -> None:
    stats = msgspec.convert(dict.fromkeys(REQUIRED, 0), EngineStats)
    state = ServerState()
    state.engine = state.engines = msgspec.structs.replace(stats, host_tier=tier("host", 7))
    text = render(MetricFamilies("m"), Counts(), state)
    assert b'penstock:kv_host_blocks{model_name="m"} 7' in text
    assert b'penstock:kv_host_restored_tokens_total{model_name="m"} 7' in text
    assert b"kv_disk_" not in text
    state.engine = state.engines = msgspec.structs.replace(state.engine, tier=tier("disk", 9))
    text = render(MetricFamilies("m"), Counts(), state)
    assert b'penstock:kv_host_read_bytes_total{model_name="m"} 7' in text
    assert b'penstock:kv_disk_read_bytes_total{model_name="m"} 9' in text
