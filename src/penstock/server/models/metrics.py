"""Metrics of a server of several models: those of each, and those of the repository."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.repository.loaded import ModelStatus
from penstock.repository.slot import State
from penstock.server.models.served import ServedModel

_LABELS: Final = ("model_name",)


class AllModels(Collector):
    """The metrics of several collectors as one, each family once, and the repository's."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        statuses: Sequence[ModelStatus[ServedModel]],
        budget: int,
        held: int,
    ) -> None:
        self._collectors = collectors
        self._statuses = statuses
        self._budget = budget
        self._held = held

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for metric in (metric for each in self._collectors for metric in each.collect()):
            known = families.setdefault(metric.name, metric)
            if known is not metric:
                known.samples += metric.samples
        yield from families.values()
        yield from self._of_repository()

    def _of_repository(self) -> Iterable[Metric]:
        total = GaugeMetricFamily(
            "penstock:models_memory_budget_bytes", "Memory that models may take", self._budget
        )
        held = GaugeMetricFamily(
            "penstock:models_memory_bytes", "Memory of these that models have", self._held
        )
        yield from (total, held)
        states = GaugeMetricFamily(
            "penstock:model_state", "1 for the state that a model is in", labels=(*_LABELS, "state")
        )
        for status in self._statuses:
            for state in get_args(State):
                states.add_metric([status.entry.name, state], float(state == status.state))
        yield states
        for name, text, values in (
            (
                "model_requests_open",
                "Requests that use the model",
                [s.open for s in self._statuses],
            ),
            (
                "model_requests_waiting",
                "Requests that wait until the model is loaded",
                [s.waiting for s in self._statuses],
            ),
            ("model_memory_bytes", "Memory it needs", [s.need or 0 for s in self._statuses]),
        ):
            gauge = GaugeMetricFamily(f"penstock:{name}", text, labels=_LABELS)
            for status, value in zip(self._statuses, values, strict=True):
                gauge.add_metric([status.entry.name], value)
            yield gauge
        for name, text, values in (
            ("model_loads", "Times it was loaded", [s.loads for s in self._statuses]),
            ("model_unloads", "Times it was unloaded", [s.unloads for s in self._statuses]),
            (
                "model_load_failures",
                "Loads that failed, and engines that were lost",
                [s.failed_loads for s in self._statuses],
            ),
        ):
            counter = CounterMetricFamily(f"penstock:{name}", text, labels=_LABELS)
            for status, value in zip(self._statuses, values, strict=True):
                counter.add_metric([status.entry.name], value)
            yield counter
