"""Families of metrics, under Penstock's names or vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from penstock.interface.buckets import Buckets


class MetricNames(StrEnum):
    """What stands before the names of metrics that vLLM has too: ``penstock:`` or ``vllm:``.
    Metrics that it does not have are ``penstock:`` ones in any case."""

    PENSTOCK = "penstock"
    VLLM = "vllm"


_OF_VLLM: Final = frozenset(
    {
        "cache_config_info",
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_cache_usage_perc",
        "lora_requests_info",
        "num_preemptions",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "prompt_tokens_cached",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_drafts",
        "time_to_first_token_seconds",
    }
)
"""Metrics of vLLM 0.32 that mean the same here."""
_OLDER: Final[Mapping[str, str]] = {
    "inter_token_latency_seconds": "time_per_output_token_seconds",
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
}
"""Names that these had in versions of vLLM that most dashboards were made for."""


class MetricFamilies:
    """Makes the families of one model's metrics. Each method yields a family for each of the
    names that the metric has."""

    def __init__(self, model_name: str, names: MetricNames = MetricNames.PENSTOCK) -> None:
        self._names = names
        # vLLM numbers the engines of a server.
        of_engine = {"engine": "0"} if names is MetricNames.VLLM else {}
        self._common: Mapping[str, str] = {"model_name": model_name, **of_engine}

    def gauge(self, name: str, text: str, value: float) -> Iterator[Metric]:
        for full in self._full(name):
            family = GaugeMetricFamily(full, text, labels=self._labels())
            family.add_metric(self._values(), value)
            yield family

    def info(
        self, name: str, text: str, facts: Mapping[str, str], value: float = 1
    ) -> Iterator[Metric]:
        """A gauge whose labels say what there is to know; its value is mostly 1."""
        for full in self._full(name):
            family = GaugeMetricFamily(full, text, labels=self._labels(*facts))
            family.add_metric(self._values(*facts.values()), value)
            yield family

    def counter(self, name: str, text: str, value: float) -> Iterator[Metric]:
        for full in self._full(name):
            family = CounterMetricFamily(full, text, labels=self._labels())
            family.add_metric(self._values(), value)
            yield family

    def counters(
        self, name: str, text: str, label: str, values: Mapping[str, float]
    ) -> Iterator[Metric]:
        """A counter for each value of one more label."""
        for full in self._full(name):
            family = CounterMetricFamily(full, text, labels=self._labels(label))
            for of_label, value in values.items():
                family.add_metric(self._values(of_label), value)
            yield family

    def histogram(self, name: str, text: str, buckets: Buckets) -> Iterator[Metric]:
        below, counted = 0, []
        for bound, count in zip((*buckets.bounds, float("inf")), buckets.counts, strict=True):
            below += count
            counted.append((_bound(bound), below))
        for full in self._full(name):
            family = HistogramMetricFamily(full, text, labels=self._labels())
            family.add_metric(self._values(), counted, buckets.total)
            yield family

    def _full(self, name: str) -> Sequence[str]:
        if self._names is MetricNames.PENSTOCK or name not in _OF_VLLM:
            return (f"penstock:{name}",)
        names = (name, _OLDER[name]) if name in _OLDER else (name,)
        return [f"vllm:{name}" for name in names]

    def _labels(self, *more: str) -> list[str]:
        return [*self._common, *more]

    def _values(self, *more: str) -> list[str]:
        return [*self._common.values(), *more]


def _bound(value: float) -> str:
    """Format the upper bound of a bucket as Prometheus does."""
    return "+Inf" if value == float("inf") else repr(float(value))
