"""Prometheus metrics, under the names that routers know from vLLM with our own prefix."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.engine.messages import EngineStats
from penstock.engine.output import RequestOutput

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds. Powers of about 2, from a small model on a fast machine to a queue of minutes.
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


class Metrics:
    """The metrics of one server. Counts requests as they pass; asks the engine for the rest."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector(model_name)
        self._registry.register(self._engine)
        name, labels = model_name, ["model_name"]

        def histogram(metric: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(metric, text, labels, buckets=buckets, registry=self._registry)
            child: Histogram = made.labels(name)
            return child

        def counter(metric: str, text: str) -> Counter:
            child: Counter = Counter(metric, text, labels, registry=self._registry).labels(name)
            return child

        self._prompt_tokens = counter(
            "penstock:prompt_tokens", "Prompt tokens of requests that began to answer"
        )
        self._cached_tokens = counter(
            "penstock:prompt_tokens_cached", "Prompt tokens of these found in the prefix cache"
        )
        self._generation_tokens = counter(
            "penstock:generation_tokens", "Tokens generated for requests"
        )
        self._first_token = histogram(
            "penstock:time_to_first_token_seconds", "From arrival to the first token", _LATENCY
        )
        self._inter_token = histogram(
            "penstock:inter_token_latency_seconds", "Between tokens of a request", _PER_TOKEN
        )
        self._end_to_end = histogram(
            "penstock:e2e_request_latency_seconds", "From arrival to the last token", _LATENCY
        )
        self._finished = Counter(
            "penstock:request_success",
            "Sequences that ended, by finish reason",
            [*labels, "finished_reason"],
            registry=self._registry,
        )
        self._failed = counter(
            "penstock:request_failure", "Requests that were refused or failed after their arrival"
        )
        self._model_name = model_name

    async def measured(
        self, outputs: AsyncGenerator[RequestOutput, None]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Pass the outputs of one generation on, and count them."""
        began = time.monotonic()
        last, tokens = began, 0
        output: RequestOutput | None = None
        try:
            async with aclosing(outputs):
                async for newer in outputs:
                    now = time.monotonic()
                    count = tokens + _new_tokens(newer, output)
                    output = newer
                    if tokens == 0:
                        self._prompt_tokens.inc(len(output.prompt_token_ids))
                        self._cached_tokens.inc(output.num_cached_tokens)
                    if count > tokens:
                        self._generation_tokens.inc(count - tokens)
                        if tokens == 0:
                            self._first_token.observe(now - began)
                        else:
                            # Sequences of one request advance side by side.
                            steps = max(1, (count - tokens) // len(output.outputs))
                            for _ in range(steps):
                                self._inter_token.observe((now - last) / steps)
                        last, tokens = now, count
                    yield output
        except GeneratorExit:
            raise
        except Exception:
            self._failed.inc()
            raise
        finally:
            self._count_end(output, time.monotonic() - began)

    def _count_end(self, output: RequestOutput | None, seconds: float) -> None:
        if output is None:
            return
        if output.finished:
            self._end_to_end.observe(seconds)
        for choice in output.outputs:
            reason = choice.finish_reason or "abort"  # left by its client
            self._finished.labels(self._model_name, reason).inc()

    def render(self, stats: EngineStats | None) -> bytes:
        """The text of ``GET /metrics``; ``stats`` is None where the engine is dead."""
        self._engine.stats = stats
        text: bytes = generate_latest(self._registry)
        return text


def _new_tokens(output: RequestOutput, before: RequestOutput | None) -> int:
    earlier = 0 if before is None else sum(choice.num_tokens for choice in before.outputs)
    return sum(choice.num_tokens for choice in output.outputs) - earlier


class _EngineCollector:
    """The engine's own numbers, as of the last scrape."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.stats: EngineStats | None = None

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("penstock:engine_up", "1 while the engine lives", labels=_LABELS)
        up.add_metric([self._model_name], 0.0 if self.stats is None else 1.0)
        yield up
        if self.stats is None:
            return
        stats = self.stats
        gauges: tuple[tuple[str, str, float], ...] = (
            ("num_requests_running", "Sequences in the running batch", stats.running),
            ("num_requests_waiting", "Sequences that wait for room", stats.waiting),
            (
                "kv_cache_usage_perc",
                "Share of the KV cache's blocks that live requests hold, 0 to 1",
                stats.kv_blocks_used / max(1, stats.kv_blocks_total),
            ),
        )
        counters: tuple[tuple[str, str, float], ...] = (
            ("prefix_cache_queries", "Prompt tokens looked up in the cache", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the cache", stats.prefix_hits),
            ("num_preemptions", "Sequences that lost their blocks", stats.preemptions),
            ("engine_steps", "Steps that the engine has run", stats.steps),
            ("tokens_computed", "Token positions that steps computed", stats.tokens_computed),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"penstock:{name}", text, labels=_LABELS)
            gauge.add_metric([self._model_name], value)
            yield gauge
        for name, text, value in counters:
            counter = CounterMetricFamily(f"penstock:{name}", text, labels=_LABELS)
            counter.add_metric([self._model_name], value)
            yield counter


_LABELS = ("model_name",)
