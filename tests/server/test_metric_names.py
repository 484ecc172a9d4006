"""Names of metrics: those of vLLM where it has them, and those that the dashboard asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.http_client import running

from penstock.interface.buckets import Buckets
from penstock.interface.messages import DraftStats, EngineStats
from penstock.server.metric_families import MetricFamilies, MetricNames
from penstock.server.metrics import Counts, ServerState, render

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
VLLM_DASHBOARD = [
    "e2e_request_latency_seconds_bucket",
    "e2e_request_latency_seconds_count",
    "e2e_request_latency_seconds_sum",
    "prompt_tokens_total",
    "generation_tokens_total",
    "inter_token_latency_seconds_bucket",
    "time_per_output_token_seconds_bucket",
    "num_requests_running",
    "num_requests_waiting",
    "time_to_first_token_seconds_bucket",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "request_success_total",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_max_num_generation_tokens_bucket",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "cache_config_info",
    "request_params_n_bucket",
    "request_params_max_tokens_bucket",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_hits_total",
    "num_preemptions_total",
    "iteration_tokens_total_bucket",
    "request_inference_time_seconds_sum",
    "prompt_tokens_cached_total",
]
"""What the dashboards that vLLM has had read, and Kubernetes' gateway for inference."""


def rendered(names: MetricNames) -> str:
    """The metrics of a server with all that one can have."""
    figures = {field.name: 0 for field in msgspec.structs.fields(EngineStats) if field.required}
    state = ServerState()
    state.engine = state.engines = EngineStats(
        **(figures | {"kv_blocks_total": 12}),
        drafts=DraftStats(
            steps=1,
            drafts=1,
            draft_tokens=2,
            draft_levels=2,
            accepted_tokens=1,
            rejections=1,
            accepted_by_position=[1, 0],
            draft_seconds=0.5,
        ),
        step_seconds=Buckets.empty((0.1, 1.0)),
        step_tokens=Buckets.empty((1.0, 10.0)),
        states_total=4,
    )
    return render(MetricFamilies("m", names), Counts(), state, has_slo=True).decode()


def samples(text: str) -> set[str]:
    return set(re.findall(r"^(\w+:\w+)\{", text, re.MULTILINE))


def test_dashboards_of_vllm_find_their_metrics() -> None:
    text = rendered(MetricNames.VLLM)
    assert {f"vllm:{name}" for name in VLLM_DASHBOARD} <= samples(text)
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in text
    config = re.search(r"^vllm:cache_config_info\{(.*)\} 1.0$", text, re.MULTILINE)
    assert config is not None
    assert 'block_size="32"' in config[1]
    assert 'num_gpu_blocks="12"' in config[1]


def test_what_vllm_has_not_keeps_its_name() -> None:
    ours, theirs = samples(rendered(MetricNames.PENSTOCK)), samples(rendered(MetricNames.VLLM))
    assert {name for name in ours if not name.startswith("penstock:")} == set()
    kept = {name for name in theirs if name.startswith("penstock:")}
    assert {"penstock:engine_up", "penstock:engine_step_seconds_bucket"} <= kept
    # A metric has one prefix or the other, and none is lost.
    renamed = {name.replace("vllm:", "penstock:") for name in theirs - kept}
    assert not renamed & kept
    assert ours <= renamed | kept


def test_a_server_counts_under_the_names_that_it_was_told(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 0, metric_names="vllm") as server:
        body = {"model": "fake", "prompt": "abc", "max_tokens": 7, "n": 2}
        assert server.post("/v1/completions", body).status_code == 200
        text = server.http.get("/metrics").text
    labels = r'\{engine="0",model_name="fake"\} '
    for name, value in (
        ("generation_tokens_total", 14),
        ("request_params_n_sum", 2),
        ("request_params_max_tokens_sum", 7),
        ("request_max_num_generation_tokens_sum", 7),
        ("time_per_output_token_seconds_count", 12),
    ):
        assert re.search(rf"^vllm:{name}{labels}{value}\.0$", text, re.MULTILINE), name


@pytest.mark.parametrize("names", MetricNames)
def test_the_dashboard_asks_for_metrics_that_there_are(names: MetricNames) -> None:
    there = samples(rendered(names))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [query["expr"] for panel in panels for query in panel.get("targets", [])]
    assert len(asked) > 30
    for expression in asked:
        found = re.findall(r"[\w$}{]+:\w+", expression)
        assert found, expression
        assert {name.replace("${prefix}", names) for name in found} <= there, expression


def test_panels_of_the_dashboard_have_units_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [cell for panel in panels for cell in _cells(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24
    for panel in panels:
        if panel["type"] not in ("row", "heatmap"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["description"], panel["title"]


def _cells(at: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for row in range(at["y"], at["y"] + at["h"]):
        for column in range(at["x"], at["x"] + at["w"]):
            yield column, row
