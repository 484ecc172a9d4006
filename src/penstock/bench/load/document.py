"""The document of a load test, as ``--json`` writes it: its fields are stable within a version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.bench.load.client_load import ClientLoad
from penstock.bench.load.confidence import Repeated, repeated
from penstock.bench.load.figures import Figures
from penstock.bench.load.load import Load
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.scrape import ServerMetrics
from penstock.bench.load.search import Found
from penstock.service_level import Limit

VERSION: Final = 1
"""Raised when a field changes its meaning or goes; fields may be added without."""
_LATE_S: Final = 0.005


class ServerAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The server that was measured."""

    url: str
    endpoint: str
    model: str
    models: list[str]
    max_model_len: int | None
    owned_by: str | None
    round_trip_s: float
    """The median time until a connection stood: with plain HTTP one round trip. TTFT and whole
    requests less this is what they would be beside the server."""
    tells_usage: bool
    ignores_eos: bool
    """Whether it knows ``ignore_eos``; otherwise answers may be shorter than asked for."""


class TextAbout(msgspec.Struct, frozen=True, kw_only=True):
    """How random prompts were made."""

    known_by: str
    """What told the number of tokens of a word."""
    tokens_per_word: float
    exact: bool
    """Whether texts have exactly the tokens asked for, but for the chat template's."""


class LoadedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one load."""

    point: int
    """Index of its load among ``points``."""
    repeat: int
    arrivals: str
    rate: float | None
    """Conversations a second that were asked for."""
    concurrency: int | None
    text_seed: int
    started: str
    """UTC, as ISO 8601 writes it."""
    seconds: float
    partial: bool
    skipped_turns: int
    whole: Figures
    steady: Figures | None
    """The run without its ramps; None where there is no such part."""
    client: ClientLoad
    server_metrics: ServerMetrics | None
    energy_j: float | None
    """What this machine's processors took, the client's share with it; None if not readable."""
    requests: list[RequestRecord]

    @property
    def load(self) -> Load:
        return Load(self.rate, self.concurrency)

    @property
    def client_late(self) -> bool:
        """Whether the client itself took milliseconds to send or to read: its delays are then part
        of the latencies."""
        sent = self.whole.distributions.get("send_lag")
        late = self.concurrency is None and sent is not None and sent.summary.p99 > _LATE_S
        return late or self.client.loop_lag_p99_s > _LATE_S


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One load, over its repeats."""

    rate: float | None
    concurrency: int | None
    runs: list[int]
    figures: dict[str, Repeated]
    """Means over the repeats with Student's intervals: rates, and ``ttft.p99`` and the like of
    every distribution; empty with fewer than two repeats."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    version: int
    benchmark: str
    finished: str
    command: str
    partial: bool
    server: ServerAbout
    text: TextAbout
    workload: dict[str, Any]
    slo: list[Limit]
    names: dict[str, dict[str, str]]
    """What other tools call the distributions."""
    machine: dict[str, Any]
    """The client's."""
    runs: list[LoadedRun]
    points: list[Point]
    search: Found | None


def points_of(runs: Sequence[LoadedRun]) -> list[Point]:
    """Runs of one load brought together. Those that were stopped are left out of the means."""
    found = []
    for point in sorted({run.point for run in runs}):
        places = [place for place, run in enumerate(runs) if run.point == point]
        whole = [runs[place].whole for place in places if not runs[place].partial]
        first = runs[places[0]]
        found.append(
            Point(
                rate=first.rate,
                concurrency=first.concurrency,
                runs=places,
                figures=over_repeats(whole),
            )
        )
    return found


_RATES: Final = (
    *("completed_per_s", "output_tokens_per_s", "input_tokens_per_s", "goodput_per_s"),
    *("good_share", "cached_share", "mean_in_flight"),
)


def over_repeats(runs: Sequence[Figures]) -> dict[str, Repeated]:
    """Every figure of runs that were alike; empty with fewer than two."""
    found: dict[str, Repeated | None] = {
        name: repeated([value for run in runs if (value := getattr(run, name)) is not None])
        for name in _RATES
    }
    for name in {name: None for run in runs for name in run.distributions}:
        each = [run.distributions.get(name) for run in runs]
        for part in ("mean", "p50", "p90", "p99"):
            found[f"{name}.{part}"] = repeated(
                [float(getattr(one.summary, part)) for one in each if one is not None]
            )
    return {name: value for name, value in found.items() if value is not None}
