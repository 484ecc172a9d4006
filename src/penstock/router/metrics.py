"""The router's metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.router.fleet import Fleet
from penstock.router.prompts import Prompts
from penstock.router.replica import Replica, ReplicaCounts
from penstock.server.metrics import exposition

GONE: Final = "gone"
"""The label of what servers did that are no members any more: sums over all labels never shrink."""
_PREFIX: Final = "penstock_router:"
_T = TypeVar("_T")
_LABELS: Final = ("replica",)
_COUNTERS: Final[Mapping[str, tuple[str, Callable[[ReplicaCounts], float]]]] = {
    "requests": ("Requests that were sent there", lambda of: of.requests),
    "failures": ("Of these, not answered to the end", lambda of: of.failures),
    "retries": ("Of these, asked for elsewhere", lambda of: of.retried),
    "resumed_streams": ("Streams that another replica continued", lambda of: of.resumed),
    "prompt_tokens": ("Prompt tokens sent there", lambda of: of.prompt_tokens),
    "prompt_tokens_cached": (
        "Of these, expected to be in its cache",
        lambda of: of.cached_tokens,
    ),
}
_GAUGES: Final[Mapping[str, tuple[str, Callable[[Replica], float]]]] = {
    "ready": ("1 while it takes requests", lambda r: r.state == "ready"),
    "cache_followed": (
        "1 while what its cache holds is known from its events",
        lambda r: r.synchronized,
    ),
}


def render(fleet: Fleet, prompts: Prompts, open_requests: int) -> bytes:
    """The text of ``GET /metrics``."""
    return exposition(_Collector(fleet, prompts, open_requests))


class _Collector(Collector):
    def __init__(self, fleet: Fleet, prompts: Prompts, open_requests: int) -> None:
        self._fleet = fleet
        self._prompts = prompts
        self._open = open_requests

    def collect(self) -> Iterator[Metric]:
        for name, text, level in (
            ("http_requests_open", "HTTP requests in work", self._open),
            (
                "requests_waiting",
                "Of these, without a replica for now",
                self._fleet.waiting_requests,
            ),
        ):
            yield GaugeMetricFamily(_PREFIX + name, text, value=level)
        for name, text, count in (
            (
                "key_queries",
                "Prompts whose keys a replica was asked for",
                self._prompts.asked,
            ),
            ("key_queries_failed", "Of these, those without an answer", self._prompts.unanswered),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=count)
        replicas = {replica.url: replica for replica in self._fleet.replicas}
        counts = {url: replica.counts for url, replica in replicas.items()}
        if self._fleet.of_gone.requests:
            counts[GONE] = self._fleet.of_gone
        loads: Mapping[str, tuple[str, Callable[[Replica], float]]] = {
            "prefill_tokens": ("Prompt tokens that are not computed yet", self._prefill),
            "decoding": ("Sequences that decode", self._decoding),
        }
        yield from _labelled(CounterMetricFamily, _COUNTERS, counts)
        yield from _labelled(GaugeMetricFamily, _GAUGES, replicas)
        yield from _labelled(GaugeMetricFamily, loads, replicas)

    def _prefill(self, replica: Replica) -> float:
        return self._fleet.load(replica)[0]

    def _decoding(self, replica: Replica) -> float:
        return self._fleet.load(replica)[1]


def _labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    values: Mapping[str, tuple[str, Callable[[_T], float]]],
    of: Mapping[str, _T],
) -> Iterator[Metric]:
    """A metric for each of ``values``, with a sample for each label of ``of``."""
    for name, (text, value) in values.items():
        metric = family(_PREFIX + name, text, labels=_LABELS)
        for label, each in of.items():
            metric.add_metric([label], float(value(each)))
        yield metric
