"""Prometheus metrics, under the names that routers know from vLLM."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from penstock.interface.buckets import Buckets
from penstock.interface.messages import DraftStats, EngineStats, HandoverStats, TierStats
from penstock.server.engine_totals import EngineTotals
from penstock.server.metric_families import MetricFamilies

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Seconds. Powers of about 2, from a small model on a fast machine to a queue of minutes.
_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))  # 1 to 500,000
_SEQUENCES = (1.0, 2.0, 5.0, 10.0, 20.0)


class Counts:
    """What was counted of one model, whichever engine it had. Belongs to one event loop."""

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
        self.longest_outputs = Buckets.empty(_TOKENS)  # of a request's sequences
        self.asked_tokens = Buckets.empty(_TOKENS)  # of requests that limit their output
        self.asked_sequences = Buckets.empty(_SEQUENCES)
        self.engines = EngineTotals()


class AdaptersInUse(NamedTuple):
    """Which adapters an engine serves, by their names."""

    most: int
    """So many run at once."""
    running: tuple[str, ...]
    waiting: tuple[str, ...]


class ServerState:
    """Values that are read when metrics are rendered."""

    def __init__(self) -> None:
        self.engine: EngineStats | None = None  # None while the engine cannot tell
        self.engines: EngineStats | None = None  # what all of the model's have counted so far
        self.engine_up = False
        self.engine_restarts = 0
        self.server_restarts = 0
        self.open_requests = 0
        self.dropped_log_lines = 0
        self.ended_jobs: Mapping[str, int] = {}  # of worker processes, by why
        self.adapters: AdaptersInUse | None = None  # None where none can be served

    @classmethod
    def at_rest(cls, counts: Counts) -> ServerState:
        """That of a model which is not loaded: what was counted stays."""
        state = cls()
        state.engines = counts.engines.known
        state.engine_restarts = counts.engines.restarts
        state.ended_jobs = counts.engines.ended_jobs
        return state


def render(
    families: MetricFamilies, counts: Counts, state: ServerState, has_slo: bool = False
) -> bytes:
    """The text of ``GET /metrics``."""
    return exposition(ModelMetrics(families, counts, state, has_slo))


def exposition(collector: Collector) -> bytes:
    """What a collector has, in the form that Prometheus reads (:data:`CONTENT_TYPE`)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    text: bytes = generate_latest(registry)
    return text


class ModelMetrics(Collector):
    """The metrics of one model and of its server."""

    def __init__(
        self, families: MetricFamilies, counts: Counts, state: ServerState, has_slo: bool
    ) -> None:
        self._families = families
        self._counts = counts
        self._state = state
        self._has_slo = has_slo

    def collect(self) -> Iterator[Metric]:
        yield from self._of_server()
        yield from self._of_requests()
        if self._state.adapters is not None:
            yield from self._of_adapters(self._state.adapters)
        if self._state.engine is not None:
            yield from self._of_engine_now(self._state.engine)
        if self._state.engines is not None:
            yield from self._of_engines(self._state.engines)

    def _of_server(self) -> Iterator[Metric]:
        families, state = self._families, self._state
        yield from families.gauge(
            "engine_up", "1 while the engine can serve", float(state.engine_up)
        )
        yield from families.counter(
            "engine_restarts", "Engines started anew", state.engine_restarts
        )
        yield from families.counter(
            "server_restarts", "Server processes started anew", state.server_restarts
        )
        yield from families.gauge(
            "http_requests_open", "HTTP requests in work", state.open_requests
        )
        yield from families.counter(
            "log_lines_dropped", "Log lines that could not be written", state.dropped_log_lines
        )
        causes = ("time", "memory", "crash", "late", "lost", "left", "overload")
        yield from families.counters(
            "worker_jobs_ended",
            "Grammars, templates and texts that worker processes gave up, by cause",
            "cause",
            {cause: state.ended_jobs.get(cause, 0) for cause in causes},
        )

    def _of_adapters(self, adapters: AdaptersInUse) -> Iterator[Metric]:
        # As vLLM has it, and routers read it: the value is the time, of the last sample.
        yield from self._families.info(
            "lora_requests_info",
            "Adapters that are in use and waited for; the value is the time",
            {
                "max_lora": str(adapters.most),
                "running_lora_adapters": ",".join(adapters.running),
                "waiting_lora_adapters": ",".join(adapters.waiting),
            },
            time.time(),
        )

    def _of_requests(self) -> Iterator[Metric]:
        families, counts = self._families, self._counts
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of requests that answered", counts.prompt_tokens),
            ("prompt_tokens_cached", "Of these, found in the prefix cache", counts.cached_tokens),
            ("generation_tokens", "Tokens generated for requests", counts.generation_tokens),
            ("request_failure", "Requests that failed after their arrival", counts.failures),
            ("request_queue_full", "Requests that a full queue refused", counts.refused_full),
        ):
            yield from families.counter(name, text, value)
        if self._has_slo:
            text = "Requests that were answered, failed or were refused"
            yield from families.counter("request_slo_judged", text, counts.judged)
            text = "Of these, answered within the service level"
            yield from families.counter("request_slo_met", text, counts.within_slo)
        reasons = sorted({"stop", "length", "abort", "error", *counts.finished})
        yield from families.counters(
            "request_success",
            "Sequences that ended, by finish reason",
            "finished_reason",
            {reason: counts.finished[reason] for reason in reasons},
        )
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
            (
                "request_max_num_generation_tokens",
                "Tokens of a request's longest sequence",
                counts.longest_outputs,
            ),
            ("request_params_max_tokens", "Tokens that a request limits to", counts.asked_tokens),
            ("request_params_n", "Sequences that a request asks for", counts.asked_sequences),
        ):
            yield from families.histogram(name, text, buckets)

    def _of_engine_now(self, stats: EngineStats) -> Iterator[Metric]:
        families = self._families
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
        if stats.handover is not None:
            gauges = (*gauges, *_of_handover_now(stats.handover))
        for name, text, value in gauges:
            yield from families.gauge(name, text, value)
        yield from families.info(
            "cache_config_info",
            "The KV cache: tokens of a block, and blocks, whatever they are in",
            {
                "block_size": str(stats.kv_block_tokens),
                "num_gpu_blocks": str(stats.kv_blocks_total),
            },
        )

    def _of_engines(self, stats: EngineStats) -> Iterator[Metric]:
        families = self._families
        counters: Iterable[tuple[str, str, float]] = (
            ("prefix_cache_queries", "Prompt tokens looked up in the cache", stats.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found in the cache", stats.prefix_hits),
            ("num_preemptions", "Sequences that lost their blocks", stats.preemptions),
            ("engine_steps", "Steps that the engine has run", stats.steps),
            ("tokens_computed", "Token positions that steps computed", stats.tokens_computed),
        )
        for name, text, value in counters:
            yield from families.counter(name, text, value)
        if stats.step_seconds is not None:
            yield from families.histogram(
                "engine_step_seconds", "Time of a step", stats.step_seconds
            )
        if stats.step_tokens is not None:
            yield from families.histogram(
                "iteration_tokens_total", "Token positions computed in a step", stats.step_tokens
            )

        if stats.drafts is not None:
            yield from self._of_drafts(stats.drafts)
        if stats.handover is not None:
            yield from self._of_handovers(stats.handover)
        for tier in (stats.host_tier, stats.tier):
            if tier is not None:
                yield from self._of_tier(tier)

    def _of_handovers(self, handover: HandoverStats) -> Iterator[Metric]:
        families = self._families
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
            yield from families.counter(name, text, value)

    def _of_tier(self, tier: TierStats) -> Iterator[Metric]:
        families, name_of = self._families, f"kv_{tier.name}_{{}}".format
        for name, text, value in (
            ("blocks", "Blocks of keys and values that can be found there", tier.blocks),
            ("pinned_blocks", "Those of them that never make room", tier.pinned_blocks),
            ("unwritten_bytes", "Bytes of blocks that wait to be written", tier.unwritten_bytes),
            ("requests_aside", "Requests whose turn has come and blocks have not", tier.aside),
        ):
            yield from families.gauge(name_of(name), text, value)
        for name, text, count in (
            ("fetches", "Requests for which blocks were read", tier.fetches),
            ("declined", "Requests for which computing was faster", tier.declined),
            ("given_up", "Fetches of which not all came, or not in time", tier.given_up),
            ("restored_tokens", "Prompt tokens whose blocks came from there", tier.restored_tokens),
            ("saved_seconds", "What computing these would have taken", tier.saved_seconds),
            ("read_bytes", "Bytes of blocks that were read", tier.read_bytes),
            ("read_seconds", "Time that reading took, of all threads", tier.read_seconds),
            ("written_bytes", "Bytes of blocks that were written", tier.written_bytes),
            ("missed_blocks", "Blocks that were gone before they were written", tier.missed_blocks),
            ("evicted_blocks", "Blocks that made room for others", tier.evicted_blocks),
            ("damaged_blocks", "Blocks that were not what they were", tier.damaged_blocks),
            ("failures", "Reads and writes that the system refused", tier.failures),
        ):
            yield from families.counter(name_of(name), text, count)
        if tier.fetch_seconds is not None:
            text = "Time until all blocks of a request had come"
            yield from families.histogram(name_of("fetch_seconds"), text, tier.fetch_seconds)

    def _of_drafts(self, drafts: DraftStats) -> Iterator[Metric]:
        families = self._families
        for name, text, value in (
            ("spec_decode_num_drafts", "Drafts that were verified", drafts.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens verified", drafts.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Of these, accepted", drafts.accepted_tokens),
            ("spec_decode_draft_seconds", "Time that making drafts took", drafts.draft_seconds),
        ):
            yield from families.counter(name, text, value)
        yield from families.counters(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their position in the draft",
            "position",
            {str(at): accepted for at, accepted in enumerate(drafts.accepted_by_position)},
        )


def _of_handover_now(handover: HandoverStats) -> Iterator[tuple[str, str, float]]:
    """The gauges: name, text and value."""
    of_others = "Prefill" if handover.role == "decode" else "Decode"
    yield "handover_peers", f"{of_others} engines that are connected", handover.peers
    yield "handovers_open", "Prompts whose handover is not over", handover.open
