"""Which of the configurations that were found to look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.sizing.configuration import Configuration


@dataclass(frozen=True)
class Best:
    """The configurations to look at. Those of a list come in the order of what they cost."""

    cheapest: Configuration
    fastest: Configuration
    fullest: Configuration
    """The one with the cheapest tokens where replicas serve as many requests as they can."""
    meets: bool
    """Whether they meet the SLO; else they are those that miss it least."""
    each: tuple[Configuration, ...]
    """The cheapest of each accelerator and type of weights."""


def best(found: Sequence[Configuration]) -> Best:
    """Choose among configurations, of which there is at least one."""
    meeting = [each for each in found if each.meets]
    if not meeting:
        nearest = sorted(found, key=lambda each: (each.excess, _cost(each)))
        least = nearest[0]
        return Best(least, least, least, False, _distinct(nearest))
    by_cost = sorted(meeting, key=_cost)
    return Best(
        by_cost[0],
        min(meeting, key=lambda each: each.at_load.latency),
        min(meeting, key=_full_cost),
        True,
        _distinct(by_cost),
    )


def _cost(each: Configuration) -> tuple[float, int, int, float]:
    """Order by price, then by number of devices, by what weights lose, and by speed."""
    price = each.usd_per_hour
    loss = ("none", "int8", "int4").index(each.precision.weights)
    return (math.inf if price is None else price, each.devices, loss, each.at_load.latency)


def _full_cost(each: Configuration) -> tuple[float, float]:
    """Cost of what a request's tokens take, or without prices the devices for them."""
    cost = each.usd_per_million_full
    per_device = each.parallel.devices / each.full.output_tps
    if cost is None:
        return (math.inf, per_device)
    return (
        cost[0] * each.full.input_tps + cost[1] * each.full.output_tps
    ) / each.full.output_tps, (per_device)


def _distinct(ranked: Iterable[Configuration]) -> tuple[Configuration, ...]:
    seen: dict[tuple[str, str], Configuration] = {}
    for each in ranked:
        seen.setdefault((each.device.name, each.precision.weights), each)
    return tuple(seen.values())
