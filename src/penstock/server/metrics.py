"""Prometheus metrics, under the names that routers know from vLLM with our own prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from penstock.interface.buckets import Buckets
from penstock.interface.messages import DraftStats, EngineStats, HandoverStats

CONTENT_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("model_name",)

# Seconds. Powers of about 2, from a small model on a fast machine to a queue of minutes.
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))  # 1 to 500,000


class Counts:
    """Counters of requests, updated as they pass. Belongs to one event loop."""

    def __init__(self) -> None:
        self.prompt_tokens = 0  # of requests that began to answer
        self.cached_tokens = 0  # of these
        self.generation_tokens = 0
        self.failures = 0  # requests that were refused or failed after their arrival
        self.refused_full = 0  # requests that the full queue did not take
        self.judged = 0  # requests that were answered, failed or were refused
        self.within_slo = 0  # of these, answered within the service level
        self.last_end_ms = 0  # when the last answer ended, in Unix time
        self.finished: Counter[str] = Counter()  # sequences, by finish reason
        self.first_token = Buckets.empty(_LATENCY)
        self.inter_token = Buckets.empty(_PER_TOKEN)
        self.per_output_token = Buckets.empty(_PER_TOKEN)
        self.end_to_end = Buckets.empty(_LATENCY)
        self.queue = Buckets.empty(_LATENCY)
        self.prefill = Buckets.empty(_LATENCY)
        self.decode = Buckets.empty(_LATENCY)
        self.inference = Buckets.empty(_LATENCY)
        self.prompt_lengths = Buckets.empty(_TOKENS)
        self.output_lengths = Buckets.empty(_TOKENS)


class ServerState:
    """Values that are read when metrics are rendered."""

    def __init__(self) -> None:
        self.engine: EngineStats | None = None  # None while the engine cannot tell
        self.engine_up = False
        self.engine_restarts = 0
        self.server_restarts = 0
        self.open_requests = 0
        self.dropped_log_lines = 0
        self.ended_jobs: Mapping[str, int] = {}  # of worker processes, by why


def render(model_name: str, counts: Counts, state: ServerState, has_slo: bool = False) -> bytes:
    """The text of ``GET /metrics``."""
    return exposition(_Collector(model_name, counts, state, has_slo))


def exposition(collector: Collector) -> bytes:
    """What a collector has, in the form that Prometheus reads (:data:`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    text: bytes = generate_latest(registry)
    return text


class _Collector(Collector):
    def __init__(self, model_name: str, counts: Counts, state: ServerState, has_slo: bool) -> None:
        self._model_name = model_name
        self._counts = counts
        self._state = state
        self._has_slo = has_slo

    def collect(self) -> Iterator[Metric]:
        yield from self._of_server()
        yield from self._of_requests()
        if self._state.engine is not None:
            yield from self._of_engine(self._state.engine)

    def _of_server(self) -> Iterator[Metric]:
        state = self._state
        yield self._gauge("engine_up", "1 while the engine can serve", float(state.engine_up))
        yield self._counter("engine_restarts", "Engines started anew", state.engine_restarts)
        yield self._counter(
            "server_restarts", "Server processes started anew", state.server_restarts
        )
        yield self._gauge("http_requests_open", "HTTP requests in work", state.open_requests)
        yield self._counter(
            "log_lines_dropped", "Log lines that could not be written", state.dropped_log_lines
        )
        ended = CounterMetricFamily(
            "penstock:worker_jobs_ended",
            "Grammars, templates and texts that worker processes gave up, by cause",
            labels=[*_LABELS, "cause"],
        )
        for cause in ("time", "memory", "crash", "late", "lost", "left", "overload"):
            ended.add_metric([self._model_name, cause], state.ended_jobs.get(cause, 0))
        yield ended

    def _of_requests(self) -> Iterator[Metric]:
        counts = self._counts
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that answered", counts.prompt_tokens),
            ("prompt_tokens_cached", "Of these, found in the prefix cache", counts.cached_tokens),
            ("generation_tokens", "Tokens generated for requests", counts.generation_tokens),
            ("request_failure", "Requests that failed after their arrival", counts.failures),
            ("request_queue_full", "Requests that a full queue refused", counts.refused_full),
        ):
            yield self._counter(name, text, value)
        if self._has_slo:
            text = "Requests that were answered, failed or were refused"
            yield self._counter("request_slo_judged", text, counts.judged)
            text = "Of these, answered within the service level"
            yield self._counter("request_slo_met", text, counts.within_slo)
        finished = CounterMetricFamily(
            "penstock:request_success",
            "Sequences that ended, by finish reason",
            labels=[*_LABELS, "finished_reason"],
        )
        for reason in sorted({"stop", "length", "abort", "error", *counts.finished}):
            finished.add_metric([self._model_name, reason], counts.finished[reason])
        yield finished
        for name, text, buckets in (
            ("time_to_first_token_seconds", "Arrival to first token", counts.first_token),
            ("inter_token_latency_seconds", "Between tokens of a sequence", counts.inter_token),
            (
                "request_time_per_output_token_seconds",
                "Mean time between a request's tokens",
                counts.per_output_token,
            ),
            ("e2e_request_latency_seconds", "Arrival to last token", counts.end_to_end),
            ("request_queue_time_seconds", "Waiting to run", counts.queue),
            ("request_prefill_time_seconds", "Start to first token", counts.prefill),
            ("request_decode_time_seconds", "First to last token", counts.decode),
            ("request_inference_time_seconds", "Start to last token", counts.inference),
            ("request_prompt_tokens", "Prompt tokens of a request", counts.prompt_lengths),
            ("request_generation_tokens", "Tokens of a sequence", counts.output_lengths),
        ):
            yield self._histogram(name, text, buckets)

    def _of_engine(self, stats: EngineStats) -> Iterator[Metric]:
        used = stats.kv_blocks_used / max(1, stats.kv_blocks_total)
        gauges: tuple[tuple[str, str, float], ...] = (
            ("num_requests_running", "Sequences in the running batch", stats.running),
            ("num_requests_waiting", "Sequences that wait for room", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks that live requests hold, 0 to 1", used),
        )
        if stats.states_total:
            share = stats.states_used / stats.states_total
            text = "Share of state slots in use, 0 to 1"
            gauges = (*gauges, ("state_slots_usage_perc", text, share))
        counters: Iterable[tuple[str, str, float]] = (
            ("prefix_cache_queries", "Prompt tokens looked up in the cache", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the cache", stats.prefix_hits),
            ("num_preemptions", "Sequences that lost their blocks", stats.preemptions),
            ("engine_steps", "Steps that the engine has run", stats.steps),
            ("tokens_computed", "Token positions that steps computed", stats.tokens_computed),
        )
        for name, text, value in gauges:
            yield self._gauge(name, text, value)
        for name, text, value in counters:
            yield self._counter(name, text, value)
        if stats.step_seconds is not None:
            yield self._histogram("engine_step_seconds", "Time of a step", stats.step_seconds)
        if stats.step_tokens is not None:
            yield self._histogram(
                "iteration_tokens_total", "Token positions computed in a step", stats.step_tokens
            )

        if stats.drafts is not None:
            yield from self._of_drafts(stats.drafts)
        if stats.handover is not None:
            yield from self._of_handovers(stats.handover)

    def _of_handovers(self, handover: HandoverStats) -> Iterator[Metric]:
        of_others = "Prefill" if handover.role == "decode" else "Decode"
        for name, text, value in (
            ("handover_peers", f"{of_others} engines that are connected", handover.peers),
            ("handovers_open", "Prompts whose handover is not over", handover.open),
        ):
            yield self._gauge(name, text, value)
        counters = [
            ("handovers", "Prompts that were handed over whole", handover.completed),
            ("handover_failures", "Prompts whose handover failed or was cut", handover.failed),
            ("handover_bytes", "Bytes of KV blocks that were handed over", handover.bytes),
            ("handover_tokens", "Prompt tokens that were handed over", handover.tokens),
        ]
        if handover.role == "decode":
            text = "Prompts with tokens to compute that were not worth a handover"
            counters.append(("handovers_declined", text, handover.declined))
            text = "Prompt tokens of handovers that were computed here after all"
            counters.append(("handover_recomputed_tokens", text, handover.recomputed_tokens))
        for name, text, value in counters:
            yield self._counter(name, text, value)

    def _of_drafts(self, drafts: DraftStats) -> Iterator[Metric]:
        for name, text, value in (
            ("spec_decode_num_drafts", "Drafts that were verified", drafts.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified", drafts.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Of these, accepted", drafts.accepted_tokens),
            ("spec_decode_draft_seconds", "Time that making drafts took", drafts.draft_seconds),
        ):
            yield self._counter(name, text, value)
        by_position = CounterMetricFamily(
            "penstock:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their position in the draft",
            labels=[*_LABELS, "position"],
        )
        for position, accepted in enumerate(drafts.accepted_by_position):
            by_position.add_metric([self._model_name, str(position)], accepted)
        yield by_position

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(f"penstock:{name}", text, labels=_LABELS)
        gauge.add_metric([self._model_name], value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(f"penstock:{name}", text, labels=_LABELS)
        counter.add_metric([self._model_name], value)
        return counter

    def _histogram(self, name: str, text: str, buckets: Buckets) -> Metric:
        below, counted = 0, []
        for bound, count in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
            below += count
            counted.append((_bound(bound), below))
        histogram = HistogramMetricFamily(f"penstock:{name}", text, labels=_LABELS)
        histogram.add_metric([self._model_name], counted, buckets.total)
        return histogram


def _bound(value: float) -> str:
    """Format the upper bound of a bucket as Prometheus does."""
    return "+Inf" if value == float("inf") else repr(float(value))
