"""Spans of requests: what they tell, whose trace they go on, and that nothing depends on them."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
    InMemorySpanExporter,
)
from opentelemetry.trace import SpanKind, StatusCode
from support.http_client import Server, running
from support.waiting import until

from penstock.errors import ConfigError
from penstock.server.open_requests import OpenRequest
from penstock.server.trace_options import TraceOptions
from penstock.server.traced import TracedGeneration
from penstock.server.tracing import MAX_GENERATIONS, Tracing

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"

# --- the spans of one request, by the exporter in memory ------------------------------------------


def generation(began: float) -> TracedGeneration:
    return TracedGeneration(
        prompt_tokens=40,
        cached_tokens=32,
        output_tokens=7,
        finish_reasons=("length",),
        arrived=began + 0.1,
        started=began + 0.3,
        first=began + 0.6,
        ended=began + 1.0,
        embedded=False,
    )


def spans_of(
    *changes: dict[str, Any],
    path: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
    status: int = 200,
    ended: str | None = None,
) -> list[ReadableSpan]:
    """Spans of a request that came two seconds ago, with one generation for each of ``changes``."""

    async def make() -> list[ReadableSpan]:
        exporter = InMemorySpanExporter()
        tracing = Tracing(SimpleSpanProcessor(exporter))
        future = asyncio.get_running_loop().create_future()
        request = OpenRequest("req-1", "POST", path, "127.0.0.1:5555", future)
        request.began = time.monotonic() - 2
        request.generations = [replace(generation(request.began), **each) for each in changes]
        if ended is not None:
            request.notes["ended"] = ended
        assert tracing.traces(request)
        tracing.end(request, headers or {}, status, "tiny")
        finished = list(exporter.get_finished_spans())
        if finished:
            (server,) = (span for span in finished if span.kind is SpanKind.SERVER)
            assert request.notes["trace_id"] == f"{server.context.trace_id:032x}"
        else:
            assert "trace_id" not in request.notes
        return finished

    return asyncio.run(make())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_is_a_server_span_with_its_phases() -> None:
    queue, prefill, decode, server = spans_of({})
    assert (server.name, server.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert server.parent is None
    assert server.status.status_code is StatusCode.UNSET
    reported = attributes(server)
    assert abs(reported.pop("gen_ai.response.time_to_first_chunk") - 0.6) < 1e-6
    assert reported == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "client.port": 5555,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 32,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("length",),
        "penstock.request_id": "req-1",
        "penstock.generations": 1,
    }
    assert [span.name for span in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    for span, began, ended in ((queue, 0.1, 0.3), (prefill, 0.3, 0.6), (decode, 0.6, 1.0)):
        assert span.parent is not None
        assert span.parent.span_id == server.context.span_id
        assert span.context.trace_id == server.context.trace_id
        assert abs((span.start_time - server.start_time) / 1e9 - began) < 1e-6
        assert abs((span.end_time - server.start_time) / 1e9 - ended) < 1e-6
    assert (server.end_time - server.start_time) / 1e9 >= 2
    assert abs(server.end_time - time.time_ns()) < 60e9, "not of this day's clock"
    assert attributes(prefill)["gen_ai.usage.cache_read.input_tokens"] == 32
    assert attributes(decode)["gen_ai.response.finish_reasons"] == ("length",)
    assert server.resource.attributes["service.name"] == "penstock"


def test_embeddings_have_no_decode() -> None:
    spans = spans_of({"embedded": True, "output_tokens": 0}, path="/v1/embeddings")
    assert [span.name for span in spans] == ["queue", "prefill", "POST /v1/embeddings"]
    reported = attributes(spans[-1])
    assert reported["gen_ai.operation.name"] == "embeddings"
    assert reported["gen_ai.usage.input_tokens"] == 40
    assert "gen_ai.usage.output_tokens" not in reported
    assert "gen_ai.response.time_to_first_chunk" not in reported


def test_one_that_was_left_ends_when_the_request_does() -> None:
    left = {"started": None, "first": None, "ended": None, "finish_reasons": ("abort",)}
    queue, server = spans_of(left, status=499)
    assert queue.end_time == server.end_time
    assert attributes(server)["http.response.status_code"] == 499
    assert server.status.status_code is StatusCode.UNSET, "a client may leave"
    (nothing,) = spans_of(status=499)
    assert "gen_ai.usage.input_tokens" not in attributes(nothing)


@pytest.mark.parametrize(
    ("status", "ended", "reasons", "kind"),
    [
        (503, None, ("stop",), "503"),
        (200, "engine_dead", ("stop",), "engine_dead"),
        (500, None, ("error",), "generation_failed"),
    ],
)
def test_failures_are_errors(
    status: int, ended: str | None, reasons: tuple[str], kind: str
) -> None:
    *_, server = spans_of({"finish_reasons": reasons}, status=status, ended=ended)
    assert server.status.status_code is StatusCode.ERROR
    assert attributes(server)["error.type"] == kind


def test_refused_input_is_no_error_of_the_server() -> None:
    (server,) = spans_of(status=400)
    assert server.status.status_code is StatusCode.UNSET


def test_the_callers_trace_goes_on() -> None:
    *_, server = spans_of({}, headers={"traceparent": TRACEPARENT, "tracestate": "a=b"})
    assert f"{server.context.trace_id:032x}" == TRACE
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT
    assert server.context.trace_state.get("a") == "b"


@pytest.mark.parametrize(
    "header", ["", "00", f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{PARENT}", "\xff" * 50, "x" * 9]
)
def test_a_malformed_traceparent_begins_a_trace(header: str) -> None:
    *_, server = spans_of({}, headers={"traceparent": header})
    assert server.parent is None


def test_who_is_not_sampled_by_the_caller_is_not_traced() -> None:
    assert spans_of({}, headers={"traceparent": TRACEPARENT[:-1] + "0"}) == []


def test_many_generations_make_few_spans() -> None:
    spans = spans_of(*[{}] * (MAX_GENERATIONS + 4))
    assert len(spans) == 3 * MAX_GENERATIONS + 1
    reported = attributes(spans[-1])
    assert reported["penstock.generations"] == MAX_GENERATIONS + 4
    assert reported["gen_ai.usage.input_tokens"] == 40 * (MAX_GENERATIONS + 4)


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    *_, server = spans_of({})
    assert server.resource.attributes["service.name"] == "mine"
    assert server.resource.attributes["deployment.environment.name"] == "test"


def test_variables_that_contradict_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "20")
    with pytest.raises(ConfigError, match="OTEL_"):
        Tracing.to_collector(TraceOptions("http://localhost:4318/v1/traces"))


# --- a server and a collector ---------------------------------------------------------------------


class Collector:
    """Takes what is posted to it, as a collector of OpenTelemetry does."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()

    def spans(self) -> list[Any]:
        found = []
        for body in list(self.bodies):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found += scope.spans
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.paths.add(self.path)
            taken.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        taken = Collector(served.server_port)
        thread = threading.Thread(target=served.serve_forever, daemon=True)
        thread.start()
        yield taken
        served.shutdown()


def values(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


def test_a_collector_gets_every_kind_of_request_and_no_prompt(
    tokenizer_folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    secret, headers = "PROMPTSECRET", {"traceparent": TRACEPARENT}
    with running(tokenizer_folder, 1, otlp_endpoint=collector.url) as server:
        message = {"role": "user", "content": secret}
        asked: dict[str, dict[str, Any]] = {
            "/v1/completions": {"prompt": secret, "max_tokens": 5, "stream": True},
            "/v1/chat/completions": {"messages": [message], "max_tokens": 5},
            "/v1/responses": {"input": secret, "max_output_tokens": 5},
            "/v1/embeddings": {"input": [secret, secret]},
        }
        for path, body in asked.items():
            answer = server.http.post(path, json={"model": "fake", **body}, headers=headers)
            assert answer.status_code == 200, answer.text
        server.http.get("/health")
        until(lambda: len(collector.spans()) == 17, 30, "3 phases of 3, 2 of 2, 4 servers")
    assert collector.paths == {"/v1/traces"}
    spans = {span.name: span for span in collector.spans() if span.kind == 2}
    assert set(spans) == {f"POST {path}" for path in asked}
    assert {span.trace_id.hex() for span in collector.spans()} == {TRACE}
    assert {span.parent_span_id.hex() for span in spans.values()} == {PARENT}
    reported = values(spans["POST /v1/completions"])
    assert reported["gen_ai.usage.input_tokens"] == len(secret)
    assert reported["gen_ai.usage.output_tokens"] == 5
    assert reported["gen_ai.request.model"] == "fake"
    assert 0 < reported["gen_ai.response.time_to_first_chunk"] < 30
    assert values(spans["POST /v1/embeddings"])["gen_ai.usage.input_tokens"] == 2 * len(secret)
    assert secret.encode() not in b"".join(collector.bodies)


def test_the_log_names_the_trace(
    tokenizer_folder: Path, collector: Collector, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        running(
            tokenizer_folder, 1, stderr, log_format="json", otlp_endpoint=collector.url
        ) as server,
    ):
        body = {"model": "fake", "prompt": "a", "max_tokens": 1}
        headers = {"traceparent": TRACEPARENT}
        assert server.http.post("/v1/completions", json=body, headers=headers).status_code == 200
        until(lambda: b"/v1/completions" in log.read_bytes(), 10, "logged")
        (line,) = [line for line in log.read_text().splitlines() if "/v1/completions" in line]
        assert json.loads(line)["trace_id"] == TRACE


@contextlib.contextmanager
def silent_collector() -> Iterator[str]:
    """One that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def asked_of(server: Server) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 2}
    for _ in range(60):
        assert server.post("/v1/completions", body).status_code == 200


@pytest.mark.slow
def test_a_collector_that_is_gone_or_silent_harms_no_request(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
    with silent_collector() as silent:
        for endpoint in ("http://127.0.0.1:9", silent):
            with running(tokenizer_folder, 0, otlp_endpoint=endpoint) as server:
                asked_of(server)
                server.process.send_signal(signal.SIGTERM)
                assert server.process.wait(100) == 0
