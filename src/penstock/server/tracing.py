"""OpenTelemetry spans of requests. Imported only where tracing is on: it needs the extra ``otel``.

A request's spans are made when it has ended, with the times that were noted on its way: while it
runs, tracing costs it nothing, and nothing that fails here can reach it. A thread of the SDK sends
them in batches; a collector that is slow or gone costs spans, never requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from penstock.errors import ConfigError
from penstock.server.open_requests import OpenRequest
from penstock.server.trace_options import TraceOptions
from penstock.server.traced import TracedGeneration
from penstock.version import __version__

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
"""Traced routes and their operation names in the semantic conventions for generative AI."""
MAX_GENERATIONS = 16
"""Most generations of one request that get their own spans: a list of a thousand inputs would make
thousands."""
CLOSE_S = 3.0
"""Seconds to send the remaining spans when the server ends; an unreachable collector uses all of
it."""

_log = logging.getLogger("penstock.tracing")


class Tracing:
    """Makes the spans of ended requests. ``processor`` exports them and must not block."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.version": __version__})
        if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_"):
            resource = resource.merge(Resource({"service.name": "penstock"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: Tracer = self._provider.get_tracer("penstock", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._failed = False

    @classmethod
    def to_collector(cls, options: TraceOptions) -> Tracing:
        """Raises ConfigError where OpenTelemetry's variables contradict each other."""
        try:
            return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=options.endpoint)))
        except (ValueError, OSError) as error:
            raise ConfigError(f"traces cannot be sent as OTEL_... say: {error}") from error

    def traces(self, request: OpenRequest) -> bool:
        return request.method == "POST" and request.path in OPERATIONS

    def end(self, request: OpenRequest, headers: dict[str, str], status: int, model: str) -> None:
        """Make the spans of a request that has ended, and note their trace for the log.

        ``headers`` may hold ``traceparent`` and ``tracestate``; a malformed one is ignored, as
        W3C's recommendation asks. ``status`` is 499 where the client left. Raises nothing.
        """
        try:
            span = self._request(request, headers, status, model)
            if span.get_span_context().trace_flags.sampled:
                request.notes["trace_id"] = format_trace_id(span.get_span_context().trace_id)
        except Exception:
            if not self._failed:
                self._failed = True
                _log.exception("a request's spans could not be made; further ones are not reported")

    def close(self) -> None:
        """Send the remaining spans, waiting at most CLOSE_S."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)

    def _request(
        self, request: OpenRequest, headers: dict[str, str], status: int, model: str
    ) -> Span:
        clock = _Clock()
        generations = request.generations or []
        parent = self._propagator.extract(headers, Context())
        span = self._tracer.start_span(
            f"{request.method} {request.path}",
            parent,
            SpanKind.SERVER,
            _request_attributes(request, generations, status, model),
            start_time=clock.ns(request.began),
        )
        failed = request.notes.get("ended")
        if failed is None and any("error" in each.finish_reasons for each in generations):
            failed = "generation_failed"
        if status >= 500 or failed is not None:
            span.set_attribute("error.type", str(failed or status))
            span.set_status(Status(StatusCode.ERROR))
        within = set_span_in_context(span, Context())
        for i, generation in enumerate(generations[:MAX_GENERATIONS]):
            self._phases(within, i, generation, clock)
        span.end(clock.now_ns)
        return span

    def _phases(self, within: Context, i: int, generation: TracedGeneration, clock: _Clock) -> None:
        """Make child spans for the phases that a generation reached."""
        each = generation
        end = clock.now if each.ended is None else each.ended
        marks: list[tuple[str, float, float | None]] = []
        if each.started is not None or each.first is None:
            marks.append(("queue", each.arrived, each.started))
        if each.started is not None:
            marks.append(("prefill", each.started, each.first))
        if each.first is not None and not each.embedded:
            marks.append(("decode", each.first, each.ended))
        for name, began, ended in marks:
            attributes: dict[str, AttributeValue] = {"penstock.generation": i}
            if name == "prefill":
                attributes["gen_ai.usage.input_tokens"] = each.prompt_tokens
                attributes["gen_ai.usage.cache_read.input_tokens"] = each.cached_tokens
            elif name == "decode":
                attributes["gen_ai.usage.output_tokens"] = each.output_tokens
                attributes["gen_ai.response.finish_reasons"] = each.finish_reasons
            start = clock.ns(began)
            span = self._tracer.start_span(
                name, within, SpanKind.INTERNAL, attributes, start_time=start
            )
            span.end(max(start, clock.ns(end if ended is None else ended)))


class _Clock:
    """Converts time.monotonic() seconds to Unix time in nanoseconds, from one reading of both
    clocks."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.now_ns = time.time_ns()

    def ns(self, seconds: float) -> int:
        return self.now_ns - round((self.now - seconds) * 1e9)


def _request_attributes(
    request: OpenRequest, generations: Sequence[TracedGeneration], status: int, model: str
) -> dict[str, AttributeValue]:
    operation = OPERATIONS[request.path]
    attributes: dict[str, AttributeValue] = {
        "http.request.method": request.method,
        "http.route": request.path,
        "url.path": request.path,
        "http.response.status_code": status,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "penstock",
        "gen_ai.request.model": model,
        "penstock.request_id": request.id,
    }
    if request.client:
        address, _, port = request.client.rpartition(":")
        attributes |= {"client.address": address, "client.port": int(port)}
    if not generations:
        return attributes
    attributes |= {
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": sum(each.prompt_tokens for each in generations),
        "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in generations),
        "penstock.generations": len(generations),
    }
    if operation == "embeddings":
        return attributes
    attributes |= {
        "gen_ai.usage.output_tokens": sum(each.output_tokens for each in generations),
        "gen_ai.response.finish_reasons": [r for each in generations for r in each.finish_reasons],
    }
    first = min((each.first for each in generations if each.first is not None), default=None)
    if first is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = first - request.began
    return attributes
