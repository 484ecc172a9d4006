"""What /metrics says, against what a client measures."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from support.http_client import Server, running
from support.streams import bystanders
from support.waiting import PATIENCE_S, until

from penstock.interface.messages import EngineStats, HandoverStats
from penstock.server.metric_families import MetricFamilies
from penstock.server.metrics import Counts, ServerState, render

ROUTER_NAMES = [  # vLLM's, which routers and dashboards read, with our prefix
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
    "request_prefill_time_seconds_bucket",
    "request_decode_time_seconds_bucket",
    "request_inference_time_seconds_bucket",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "iteration_tokens_total_bucket",
]
STEP_MS = 20
"""How long the fake engine takes for a step, at least."""
LATENCIES = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_decode_time_seconds",
]


@pytest.fixture
def counted(tokenizer_folder: Path) -> Server:
    with running(tokenizer_folder, STEP_MS) as server:
        yield server


def test_the_names_that_routers_read_are_there(server: Server) -> None:
    server.post("/v1/completions", {"model": "fake", "prompt": "a", "max_tokens": 2})
    text = server.http.get("/metrics").text
    names = set(re.findall(r"^penstock:(\w+)\{", text, re.MULTILINE))
    assert set(ROUTER_NAMES) <= names
    assert {"engine_step_seconds_bucket", "engine_up", "engine_restarts_total"} <= names


def test_counts_are_exact(counted: Server) -> None:
    body = {"model": "fake", "prompt": "a" * 40, "max_tokens": 7}
    for _ in range(3):
        assert counted.post("/v1/completions", body).status_code == 200
    assert counted.post("/v1/completions", {**body, "n": 2, "stream": True}).status_code == 200
    assert counted.post("/v1/completions", {**body, "prompt": ["", "b"]}).status_code == 400
    metric = counted.metric
    assert metric("prompt_tokens_total") == 4 * 40
    assert metric("generation_tokens_total") == 5 * 7
    assert metric("request_success_total", finished_reason="length") == 5
    assert metric("request_prompt_tokens_sum") == 4 * 40
    assert metric("request_prompt_tokens_count") == 4
    assert metric("request_generation_tokens_sum") == 5 * 7
    assert metric("request_generation_tokens_count") == 5
    assert metric("request_generation_tokens_bucket", le="5.0") == 0
    assert metric("request_generation_tokens_bucket", le="10.0") == 5
    assert metric("time_to_first_token_seconds_count") == 4
    assert metric("inter_token_latency_seconds_count") == 5 * 6
    assert metric("request_time_per_output_token_seconds_count") == 4
    assert metric("e2e_request_latency_seconds_count") == 4
    assert metric("engine_step_seconds_count") == metric("engine_steps_total") - 1  # warm-up
    assert metric("iteration_tokens_total_count") == metric("engine_steps_total") - 1


def test_answers_within_the_service_level_are_counted(tokenizer_folder: Path) -> None:
    def slo(server: Server) -> tuple[float, float]:
        return server.metric("request_slo_judged_total"), server.metric("request_slo_met_total")

    with running(tokenizer_folder, STEP_MS, slo=["tpot:1us", "ttft:600s"]) as server:
        body = {"model": "fake", "prompt": "abc"}
        assert slo(server) == (0, 0)
        assert server.post("/v1/completions", {**body, "max_tokens": 7}).status_code == 200
        assert slo(server) == (1, 0)
        # A single token has no time between tokens.
        assert server.post("/v1/completions", {**body, "max_tokens": 1}).status_code == 200
        assert slo(server) == (2, 1)
        assert server.post("/v1/completions", {**body, "max_tokens": -1}).status_code == 400
        assert slo(server) == (2, 1)


def test_running_sequences_are_seen_while_they_run(slow_server: Server) -> None:
    with bystanders(slow_server, count=3, tokens=200):
        # Another test's client may have left a moment ago.
        until(lambda: slow_server.metric("num_requests_running") == 3, PATIENCE_S, "all run")
        until(lambda: slow_server.metric("http_requests_open") == 3, PATIENCE_S, "all are open")
    # The client has its last byte a moment before the server has ended the request.
    until(lambda: slow_server.metric("http_requests_open") == 0, PATIENCE_S, "closed")


def test_latencies_lie_within_what_a_client_measures(counted: Server) -> None:
    """The server's spans lie inside the client's, and the engine's steps inside the server's."""
    body = {"model": "fake", "prompt": "abc", "max_tokens": 50, "stream": True}
    first = None
    began = time.monotonic()
    with counted.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if first is None and line.startswith("data: {"):
                first = time.monotonic()
    assert first is not None
    until(lambda: counted.metric("http_requests_open") == 0, PATIENCE_S, "ended")
    ended = time.monotonic()
    to_first, between, whole, decode = (counted.metric(f"{name}_sum") for name in LATENCIES)
    assert STEP_MS / 1000 <= to_first <= first - began
    assert 49 * STEP_MS / 1000 <= decode <= whole <= ended - began
    assert between == pytest.approx(decode)
    assert to_first + between == pytest.approx(whole)


def test_states_are_told_of_where_layers_keep_some() -> None:
    figures = {"kv_blocks_total": 4, "kv_blocks_used": 1, "prefix_queries": 0, "prefix_hits": 0}
    counts = {"preemptions": 0, "steps": 3, "tokens_computed": 9, "tokens_generated": 2}
    state = ServerState()
    state.engine = state.engines = EngineStats(running=1, waiting=0, **figures, **counts)
    assert b"state_slots" not in render(MetricFamilies("m"), Counts(), state)
    state.engine = state.engines = msgspec.structs.replace(
        state.engine, states_total=8, states_used=2
    )
    text = render(MetricFamilies("m"), Counts(), state)
    assert b'penstock:state_slots_usage_perc{model_name="m"} 0.25' in text


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_handovers_are_told_of_where_there_are_some(role: Literal["prefill", "decode"]) -> None:
    stats = msgspec.convert(dict.fromkeys(_REQUIRED, 0), EngineStats)
    state = ServerState()
    state.engine = state.engines = stats
    assert b"handover" not in render(MetricFamilies("m"), Counts(), state)
    handover = HandoverStats(
        role=role,
        peers=2,
        open=3,
        completed=4,
        failed=5,
        declined=6,
        bytes=7,
        tokens=8,
        recomputed_tokens=9,
    )
    state.engine = state.engines = handover.added_to(stats)
    assert state.engine.waiting == (3 if role == "decode" else 0)
    text = render(MetricFamilies("m"), Counts(), state).decode()
    found = dict(
        re.findall(r'^penstock:(handover\w+)\{model_name="m"\} (\S+)$', text, re.MULTILINE)
    )
    expected = {
        "handover_peers": "2.0",
        "handovers_open": "3.0",
        "handovers_total": "4.0",
        "handover_failures_total": "5.0",
        "handover_bytes_total": "7.0",
        "handover_tokens_total": "8.0",
    }
    if role == "decode":
        expected |= {"handovers_declined_total": "6.0", "handover_recomputed_tokens_total": "9.0"}
    assert found == expected


_REQUIRED = [field.name for field in msgspec.structs.fields(EngineStats) if field.required]
