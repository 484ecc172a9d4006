"""The figures of a simulated run, under the names of ``penstock bench serve``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.bench.stats import Summary, summarize
from penstock.service_level import Limit
from penstock.simulate.apart import ApartReplica
from penstock.simulate.asked import Asked
from penstock.simulate.fleet import Fleet
from penstock.simulate.front_end import Answer
from penstock.simulate.gaps import Gaps

F64 = NDArray[np.float64]

VERSION: Final = 1
"""Raised when a field of the document changes its meaning or goes; fields may be added without."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What the engines of all replicas did."""

    steps: int
    preemptions: int
    busy_share: float
    """The part of the run in which a step ran: the mean over replicas."""
    mean_running: float
    """Sequences of a step, by its time."""
    kv_used: float
    """The part of the blocks that was held while steps ran, by their time."""
    prefix_hit_rate: float | None
    """The part of the prompt tokens that was found in the cache; None without a cache."""
    most_rows: int
    """Tokens of the largest step."""
    most_sequences: int
    longest_context: int


class Handovers(msgspec.Struct, frozen=True, kw_only=True):
    """What came of prompts that could be computed apart."""

    completed: int
    """Prompts that were handed over whole."""
    failed: int
    declined: int
    """Prompts that did not pay."""
    tokens: int
    recomputed_tokens: int
    """Tokens of handovers that the decode engine computed after all."""
    bytes: int


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of an SLO that fewest answers were within."""

    limit: str
    good_share: float
    """The part of the answers that was within this limit."""
    p99: float
    """Seconds."""


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration under one load. Times are seconds; names are those of ``bench serve``."""

    config: str
    options: dict[str, str]
    replicas: int
    routing: str
    rate: float | None
    """Conversations a second that were asked for; None: those of the trace."""
    speed: float | None
    """How many times as fast as the trace; None with a rate, which takes the place of its times."""
    concurrency: int | None
    seconds: float
    requests: int
    completed: int
    failed: int
    skipped_turns: int
    errors: dict[str, int]
    offered_per_s: float
    completed_per_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    mean_in_flight: float
    distributions: dict[str, Summary]
    cached_share: float
    disk_share: float | None
    """The part of the prompt tokens that a disk would have found, and the pool did not; None
    without a disk."""
    good: int | None
    good_share: float | None
    goodput_per_s: float | None
    missed: Miss | None
    """What kept most answers from being good; None without limits."""
    engine: Engine
    handovers: Handovers | None
    """None where one engine does all."""
    beyond: list[str]
    """Where the run went beyond what was measured."""
    notes: list[str]
    """What the figures rest on."""
    simulated_in_s: float
    """What the simulation took."""


def outcome(
    fleet: Fleet,
    limits: Sequence[Limit],
    rate: float | None,
    speed: float | None,
    concurrency: int | None,
    simulated_in_s: float,
) -> SimulatedRun:
    """The figures of a fleet that has played its load to the end."""
    answers = fleet.answers
    whole = [each for each in answers if each.error is None]
    measured = _Measured(whole)
    seconds = max((each.end_s for each in answers), default=0.0)
    met = {str(limit): measured.met(limit) for limit in limits}
    good = np.logical_and.reduce(list(met.values())) if met else None
    num_good = None if good is None else int(good.sum())

    def per_s(count: float) -> float:
        return count / seconds if seconds > 0 else 0.0

    gaps = Gaps()
    for replica in fleet.replicas:
        gaps.join(replica.front.gaps)
    setup = fleet.setup
    prompts = sum(each.asked.prompt for each in whole)
    return SimulatedRun(
        config=setup.name,
        options=setup.options,
        replicas=setup.replicas,
        routing=setup.routing,
        rate=rate,
        speed=speed,
        concurrency=concurrency,
        seconds=seconds,
        requests=len(answers),
        completed=len(whole),
        failed=len(answers) - len(whole),
        skipped_turns=fleet.skipped,
        errors=dict(Counter(each.error for each in answers if each.error is not None)),
        offered_per_s=per_s(len(answers)),
        completed_per_s=per_s(len(whole)),
        output_tokens_per_s=per_s(sum(each.tokens for each in whole)),
        input_tokens_per_s=per_s(prompts),
        mean_in_flight=per_s(sum(each.end_s - each.asked.sent_s for each in whole)),
        distributions=measured.distributions(gaps),
        cached_share=sum(each.cached for each in whole) / prompts if prompts else 0.0,
        disk_share=_disk_share(fleet, whole, prompts),
        good=num_good,
        good_share=None if num_good is None else num_good / max(len(answers), 1),
        goodput_per_s=None if num_good is None else per_s(num_good),
        missed=_missed(limits, met, measured),
        engine=_engine(fleet, seconds),
        handovers=_handovers(fleet),
        beyond=_beyond(fleet),
        notes=list(setup.notes),
        simulated_in_s=simulated_in_s,
    )


def figure_of(limit: Limit) -> str:
    """The distribution that a limit is of; simulated answers think nothing before their output."""
    return "ttft" if limit.measure == "ttfo" else limit.measure


class _Measured:
    """The quantities of whole answers as arrays; NaN where an answer has none."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        def each(values: Iterable[float | None]) -> F64:
            return np.array([np.nan if v is None else v for v in values], np.float64)

        self._asked: list[Asked] = [one.asked for one in answers]
        sent = each(one.asked.sent_s for one in answers)
        first, second = each(a.first_s for a in answers), each(a.second_s for a in answers)
        last, tokens = each(a.last_s for a in answers), each(a.tokens for a in answers)
        prompts = each(a.asked.prompt for a in answers)
        several = (tokens >= 2) & (each(a.chunks for a in answers) >= 2)
        self.values = {
            "ttft": first - sent,
            "ttst": second - first,
            "tpot": np.where(several, (last - first) / np.maximum(tokens - 1, 1), np.nan),
            "longest_gap": each(a.longest_gap or None for a in answers),
            "e2el": last - sent,
            "input_tokens": prompts,
            "output_tokens": tokens,
        }
        with np.errstate(divide="ignore", invalid="ignore"):
            self.values["output_tokens_per_s_per_user"] = _finite(1 / self.values["tpot"])
            self.values["prefill_tokens_per_s_per_user"] = _finite(prompts / self.values["ttft"])

    def met(self, limit: Limit) -> NDArray[np.bool_]:
        """Which answers are within a limit, as those without that figure are."""
        values: NDArray[np.float64] = self.values[figure_of(limit)]
        within: NDArray[np.bool_] = np.isnan(values) | (values <= limit.seconds)
        return within

    def p99(self, limit: Limit) -> float:
        found = summarize(_known(self.values[figure_of(limit)]).tolist())
        return 0.0 if found is None else found.p99

    def distributions(self, gaps: Gaps) -> dict[str, Summary]:
        found = {name: summarize(_known(each).tolist()) for name, each in self.values.items()}
        found["itl"] = gaps.summary()
        return {name: each for name, each in found.items() if each is not None}


def _disk_share(fleet: Fleet, answers: Sequence[Answer], prompts: int) -> float | None:
    if fleet.setup.limits.disk_blocks is None:
        return None
    return sum(max(each.below - each.cached, 0) for each in answers) / max(prompts, 1)


def _finite(values: F64) -> F64:
    return np.where(np.isfinite(values), values, np.nan)


def _known(values: F64) -> F64:
    return values[~np.isnan(values)]


def _missed(
    limits: Sequence[Limit], met: dict[str, NDArray[np.bool_]], measured: _Measured
) -> Miss | None:
    if not limits or not len(met[str(limits[0])]):
        return None
    worst = min(limits, key=lambda limit: float(met[str(limit)].mean()))
    return Miss(
        limit=str(worst),
        good_share=float(met[str(worst)].mean()),
        p99=measured.p99(worst),
    )


def _engine(fleet: Fleet, seconds: float) -> Engine:
    works = [work for replica in fleet.replicas for work in replica.works]
    stats = [replica.scheduler.stats() for replica in fleet.replicas]
    busy = sum(work.busy_s for work in works)
    limits = fleet.setup.limits
    queries = sum(each.prefix_queries for each in stats)
    return Engine(
        steps=sum(work.steps for work in works),
        preemptions=sum(each.preemptions for each in stats),
        busy_share=busy / (seconds * len(works)) if seconds > 0 else 0.0,
        mean_running=sum(work.running_s for work in works) / busy if busy else 0.0,
        kv_used=sum(work.used_s for work in works) / (busy * limits.num_blocks) if busy else 0.0,
        prefix_hit_rate=sum(each.prefix_hits for each in stats) / queries if queries else None,
        most_rows=max(work.most_rows for work in works),
        most_sequences=max(work.most_sequences for work in works),
        longest_context=max(work.longest for work in works),
    )


def _handovers(fleet: Fleet) -> Handovers | None:
    found = [each.handovers for each in fleet.replicas if isinstance(each, ApartReplica)]
    if not found:
        return None
    return Handovers(
        completed=sum(each.completed for each in found),
        failed=sum(each.failed for each in found),
        declined=sum(each.declined for each in found),
        tokens=sum(each.tokens for each in found),
        recomputed_tokens=sum(each.recomputed_tokens for each in found),
        bytes=sum(each.bytes for each in found),
    )


def _beyond(fleet: Fleet) -> list[str]:
    """How the run left what was measured."""
    covered = fleet.setup.covered
    if covered is None:
        return []
    works = [work for replica in fleet.replicas for work in replica.works]
    pairs = (
        ("steps of", max(w.most_rows for w in works), covered.rows, "tokens"),
        ("steps of", max(w.most_sequences for w in works), covered.sequences, "sequences"),
        ("contexts of", max(w.longest for w in works), covered.context, "tokens"),
    )
    return [
        f"{what} {found:,} {unit}, and {most:,} were measured at most: times beyond are guessed"
        for what, found, most, unit in pairs
        if found > most
    ]
