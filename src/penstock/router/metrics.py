"""The router's metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from penstock.router.fleet import Fleet
from penstock.router.prompts import Prompts
from penstock.router.replica import Replica

_LABELS = ("replica",)


def render(fleet: Fleet, prompts: Prompts, open_requests: int) -> bytes:
    """The text of ``GET /metrics``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(fleet, prompts, open_requests))
    text: bytes = generate_latest(registry)
    return text


class _Collector:
    def __init__(self, fleet: Fleet, prompts: Prompts, open_requests: int) -> None:
        self._fleet = fleet
        self._prompts = prompts
        self._open = open_requests

    def collect(self) -> Iterator[Metric]:
        yield _plain_gauge("http_requests_open", "HTTP requests in work", self._open)
        yield _plain_counter(
            "key_queries", "Prompts whose keys a replica was asked for", self._prompts.asked
        )
        yield _plain_counter(
            "key_queries_failed", "Of these, those without an answer", self._prompts.unanswered
        )
        replicas = self._fleet.replicas
        for name, text, counted in (
            ("requests", "Requests that were sent there", [r.counts.requests for r in replicas]),
            (
                "failures",
                "Of these, not answered to the end",
                [r.counts.failures for r in replicas],
            ),
            ("retries", "Of these, asked for elsewhere", [r.counts.retried for r in replicas]),
            (
                "resumed_streams",
                "Streams that another replica continued",
                [r.counts.resumed for r in replicas],
            ),
            (
                "prompt_tokens",
                "Prompt tokens sent there",
                [r.counts.prompt_tokens for r in replicas],
            ),
            (
                "prompt_tokens_cached",
                "Of these, expected to be in its cache",
                [r.counts.cached_tokens for r in replicas],
            ),
        ):
            counter = CounterMetricFamily(f"penstock_router:{name}", text, labels=_LABELS)
            for replica, value in zip(replicas, counted, strict=True):
                counter.add_metric([replica.url], value)
            yield counter
        for name, text, levels in (
            ("ready", "1 while it takes requests", [float(r.state == "ready") for r in replicas]),
            (
                "cache_followed",
                "1 while what its cache holds is known from its events",
                [float(r.synchronized) for r in replicas],
            ),
            (
                "prefill_tokens",
                "Prompt tokens that are not computed yet",
                [self._load(r)[0] for r in replicas],
            ),
            ("decoding", "Sequences that decode", [self._load(r)[1] for r in replicas]),
        ):
            gauge = GaugeMetricFamily(f"penstock_router:{name}", text, labels=_LABELS)
            for replica, level in zip(replicas, levels, strict=True):
                gauge.add_metric([replica.url], level)
            yield gauge

    def _load(self, replica: Replica) -> tuple[float, float]:
        if replica.number is None:
            return 0.0, 0.0
        loads = self._fleet.router.loads
        return float(loads.prefill(replica.number)), float(loads.decoding(replica.number))


def _plain_gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_router:{name}", text, value=value)


def _plain_counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"penstock_router:{name}", text, value=value)
