"""What the metrics of any server say of its workload: classes of lengths, and nothing of arrivals
or shared prefixes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from penstock.errors import PenstockError

_NAMESPACE: Final = re.compile(r"^(?:\w+:|(?:ray_)?vllm_|tgi_)")
"""What stands before a metric's own name. Nothing else may: vLLM's ``prefix_cache_queries`` and
``external_prefix_cache_queries`` count lookups in two caches."""
_PROMPTS: Final = ("request_prompt_tokens", "request_input_length")
_ANSWERS: Final = ("request_generation_tokens", "request_generated_tokens")
_FIRST_TOKEN: Final = ("time_to_first_token_seconds",)
_ENDS: Final = ("request_success",)
_LOOKUPS: Final = (
    ("prefix_cache_queries", "prefix_cache_hits"),
    ("gpu_prefix_cache_queries", "gpu_prefix_cache_hits"),
)
"""Names that vLLM, Penstock and Text Generation Inference give their metrics. Those of lookups are
tokens looked up and found; versions of vLLM have both pairs, which tell the same."""
_NO_COUNT: Final = 2.0**53
"""Floats that large do not count any more."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity by a histogram's buckets. A quantile is known as the two bounds that it is
    between; the second is null where the histogram has none."""

    count: int
    mean: float
    p50: tuple[float, float | None]
    p90: tuple[float, float | None]
    p99: tuple[float, float | None]


class MetricsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A server's workload since its start, by its metrics. What these do not say is null."""

    prompt_tokens: Spread | None
    output_tokens: Spread | None
    first_token_s: Spread | None
    ends: dict[str, int]
    """Sequences by why they ended."""
    found_in_cache: float | None
    """The part of the prompt tokens looked up in the prefix cache that was found."""


def summarize_metrics(text: str) -> MetricsSummary | None:
    """The summary of metrics in Prometheus' form; None where they say nothing of lengths, or are no
    metrics. Raises PenstockError for counts that none can be."""
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError):
        return None
    prompts, answers = (_spread(families, names) for names in (_PROMPTS, _ANSWERS))
    if prompts is None and answers is None:
        return None
    return MetricsSummary(
        prompt_tokens=prompts,
        output_tokens=answers,
        first_token_s=_spread(families, _FIRST_TOKEN),
        ends=_ends(families),
        found_in_cache=_found_in_cache(families),
    )


@dataclass(frozen=True)
class _Buckets:
    bounds: tuple[float, ...]
    """Upper bounds, of which the last has no end."""
    below: tuple[float, ...]
    """Samples up to each bound."""

    def quantile(self, part: float) -> tuple[float, float | None]:
        wanted, low = part * self.below[-1], 0.0
        for bound, count in zip(self.bounds, self.below, strict=True):
            if count >= wanted:
                return low, None if math.isinf(bound) else bound
            low = bound
        return low, None


def _named(families: Iterable[Metric], names: tuple[str, ...]) -> Iterable[Metric]:
    return (each for each in families if _NAMESPACE.sub("", each.name, count=1) in names)


def _spread(families: Iterable[Metric], names: tuple[str, ...]) -> Spread | None:
    """Return the sum of all histograms of these names, of several models or engines."""
    below: dict[float, float] = {}
    count = total = 0.0
    for family in _named(families, names):
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bound = _bound(sample)
                below[bound] = below.get(bound, 0.0) + _counted(sample)
            elif sample.name.endswith("_count"):
                count += _counted(sample)
            elif sample.name.endswith("_sum"):
                total += _counted(sample)
    if not count or not below:
        return None
    bounds = tuple(sorted(below))
    buckets = _Buckets(bounds, tuple(below[bound] for bound in bounds))
    return Spread(
        count=int(count),
        mean=total / count,
        p50=buckets.quantile(0.5),
        p90=buckets.quantile(0.9),
        p99=buckets.quantile(0.99),
    )


def _found_in_cache(families: Iterable[Metric]) -> float | None:
    for names in _LOOKUPS:
        queries, hits = (_total(families, name) for name in names)
        if queries and hits is not None:
            return hits / queries
    return None


def _total(families: Iterable[Metric], name: str) -> float | None:
    samples = [
        _counted(sample)
        for family in _named(families, (name,))
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return sum(samples) if samples else None


def _ends(families: Iterable[Metric]) -> dict[str, int]:
    found: dict[str, int] = {}
    for family in _named(families, _ENDS):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            if reason is not None and not sample.name.endswith("_created"):
                found[reason] = found.get(reason, 0) + int(_counted(sample))
    return {reason: count for reason, count in found.items() if count}


def _counted(sample: Sample) -> float:
    value = float(sample.value)
    if not 0 <= value < _NO_COUNT:
        raise PenstockError(f"{sample.name} is {value:g}, which is no count")
    return value


def _bound(sample: Sample) -> float:
    text = sample.labels.get("le", "")
    try:
        bound = float(text)
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise PenstockError(f"a bucket of {sample.name} ends at le={text!r}, which is no number")
    return bound
