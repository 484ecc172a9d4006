"""Rounds of a comparison: in each, every case goes from engine to engine, one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from comparison.cases import Case, draw_requests, warm_up
from comparison.contender import Contender, LoadError, make_room
from comparison.measurement import figures
from comparison.process import WorkerError
from comparison.results import Comparison, EngineRecord, Sample

WARM_UP_ROUND = 1 << 20
"""A round that no real one reaches: prompts of the warm-up are never seen again."""


def run_rounds(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    comparison: Comparison,
    *,
    rounds: int,
    ids: range,
    seed: int,
    deadline: float | None,
    say: Callable[[str], None],
    save: Callable[[Comparison], None],
) -> int:
    """Measure, adding to ``comparison``; returns the whole rounds that were run.

    ``save`` is called whenever something was added, so that nothing is lost of a run that is ended.
    Engines of one precision go through all of their rounds before those of the next are loaded, so
    that memory holds as many as can be. Precisions share the time until ``deadline``
    (``time.monotonic``) evenly: but for the first of each, a round begins only if one as long as
    the longest so far would end in time. Each round starts with another engine, so that none always
    follows the same other.
    """
    done = 0
    precisions = list(dict.fromkeys(c.precision for c in contenders))
    try:
        for place, precision in enumerate(precisions):
            end = None if deadline is None else _share(deadline, len(precisions) - place)
            longest = 0.0
            rivals = [c for c in contenders if c.precision == precision]
            recent: list[Contender] = []
            for number in range(rounds):
                start = time.monotonic()
                if number and end is not None and start + longest > end:
                    say(f"{precision}: {number} of {rounds} rounds: another would not end in time")
                    break
                for case in cases:
                    for contender in _turned(rivals, number):
                        if contender.takes(case):
                            make_room(rivals, contender, recent)
                            _measure(contender, case, number, comparison, ids, seed, say)
                            save(comparison)
                            recent = [c for c in recent if c is not contender] + [contender]
                            contender.pause()
                longest = max(longest, time.monotonic() - start)
                done += 1
            for contender in rivals:
                contender.unload()
    finally:
        for contender in contenders:
            contender.unload()
    return done


def _share(deadline: float, parts: int) -> float:
    """When the first of so many equal parts of the time that is left ends."""
    now = time.monotonic()
    return now + (deadline - now) / parts


def _turned(contenders: Sequence[Contender], by: int) -> list[Contender]:
    by %= max(1, len(contenders))
    return [*contenders[by:], *contenders[:by]]


def _measure(
    contender: Contender,
    case: Case,
    number: int,
    comparison: Comparison,
    ids: range,
    seed: int,
    say: Callable[[str], None],
) -> None:
    first = contender.worker is None
    load = os.getloadavg()[0]
    warm = warm_up(draw_requests(case, ids, (seed, WARM_UP_ROUND)))
    try:
        ran = contender.run(case, draw_requests(case, ids, (seed, number)), warm)
    except WorkerError as error:
        whole = isinstance(error, LoadError) and not contender.served
        contender.failed.add("" if isinstance(error, LoadError) else case.name)
        contender.unload()  # in whatever state it is
        say(f"{contender.name}, {case.name}: failed: {error}")
        comparison.leave_out(
            contender.peer.name, contender.precision, None if whole else case.name, str(error)
        )
        return
    if first:
        _record_engine(contender, comparison)
    found = figures(ran.times)
    comparison.samples.append(
        Sample(
            engine=contender.peer.name,
            precision=contender.precision,
            case=case.name,
            round=number,
            figures={metric.name: value for metric, value in found.items()},
            cpu_seconds=ran.cpu_seconds,
            load_average_1m=load,
            other_cpus=ran.other_cpu_seconds / ran.seconds,
        )
    )
    say(
        f"{contender.name:<32} {case.name:<8} "
        + "  ".join(f"{metric.value} {found[metric]:.4g}" for metric in case.metrics)
    )


def _record_engine(contender: Contender, comparison: Comparison) -> None:
    """Settings of the first load; those of its server go under their own names."""
    prefix = "server " if contender.served else ""
    settings = {prefix + name: value for name, value in contender.settings.items()}
    for i, record in enumerate(comparison.engines):
        if (record.engine, record.precision) == (contender.peer.name, contender.precision):
            comparison.engines[i] = EngineRecord(
                engine=record.engine,
                precision=record.precision,
                versions=record.versions,
                settings={**record.settings, **settings},
                artifact_bytes=record.artifact_bytes,
            )
            return
    raise AssertionError(f"{contender.name} was never announced")
