"""Measures what a server takes besides its steps, by loading one as ``bench serve`` does.

All is found by simulating the same loads: without any front end first, then with what is known of
it; what is left is fitted. So what other processes take of the engine's cores, which no constant
names, is where it belongs: in the steps beside which it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Final

import msgspec
import numpy as np

from penstock.bench.load.arrivals import Arrivals, Gamma
from penstock.bench.load.campaign import Campaign, LoadPlan
from penstock.bench.load.document import LoadedRun
from penstock.bench.load.load import Load
from penstock.bench.load.sizes import Sizes
from penstock.bench.load.target import Target
from penstock.bench.load.workload import RandomWorkload
from penstock.bench.progress import Progress
from penstock.bench.stats import summarize
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import Answer, FrontTimes
from penstock.simulate.setup import Setup
from penstock.sizing.least_squares import nonnegative

NO_FRONT: Final = FrontTimes(request=0.0, prompt_token=0.0, answer=0.0, chunk=0.0)
_CHUNK_S: Final = 25e-6
"""What writing, sending and reading a chunk takes (benchmarks/server)."""
_OUTBOUND: Final = 0.3
"""The part of a lone request's time outside steps that is behind its first step: a guess, on which
no figure depends but the moment at which it joins others."""
_LOAD_S: Final = 3.0
"""What one load takes, about."""
_MOST_S: Final = 8.0
"""What one round of answers may take; longer ones are made shorter."""
_ROUNDS: Final = 3
_CHECK_S: Final = 12.0
_CHECK_LOAD: Final = 0.6


_SEVERAL: Final = (
    *((1, 64, 96), (4, 64, 96), (12, 64, 96), (32, 64, 96), (64, 64, 96)),
    *((2, 64, 6), (16, 64, 6), (48, 64, 6), (8, 400, 16), (24, 400, 16)),
)
"""Open requests, prompt and output tokens of the loads that steps are fitted to: many sequences a
step, many requests a second, many tokens of prompts."""


@dataclass(frozen=True)
class MeasuredServer:
    """What was found out about a server."""

    front: FrontTimes
    template: int
    checked: dict[str, float]
    """Simulated / measured - 1 of a load that nothing was fitted to."""


@dataclass(frozen=True)
class _Closed:
    """So many requests open at all times, all alike."""

    concurrency: int
    requests: int
    workload: RandomWorkload


def measure_server(url: str, setup: Setup, progress: Progress) -> MeasuredServer:
    """Load the server at ``url``, which runs what ``setup`` says, for some thirty seconds.

    ``setup`` has the clock of its steps; its front end is found here. Raises PenstockError where
    the server does not answer.
    """
    seqs, longest = setup.limits.max_num_seqs, setup.limits.lengths.max_model_len
    setup = replace(setup, front=NO_FRONT)
    lengths = sorted({min(each, longest // 2) for each in (16, 200, 800)})
    alone = [_closed(setup, 1, each, 2) for each in lengths]
    several = [
        _closed(setup, count, min(prompt, longest // 4), min(output, longest // 4))
        for count, prompt, output in _SEVERAL
        if count <= seqs
    ]
    progress.begin("server", len(alone) + len(several) + 1, "loads")
    lone = [_measured(url, each) for each in alone]
    progress.advance(len(lone))
    setup = replace(setup, template=_template(lone))
    setup = replace(setup, front=_of_requests(setup, alone, lone))
    runs = []
    for each in several:
        runs.append(_measured(url, each))
        progress.advance(1)
    for _ in range(_ROUNDS):  # what one fit finds is part of the other's
        setup = replace(setup, front=_of_steps(setup, several, runs))
        setup = replace(setup, front=_of_requests(setup, alone, lone))
        setup = replace(setup, front=_of_crowds(setup, several, runs))
    checked = _check(url, setup)
    progress.advance(1)
    return MeasuredServer(setup.front, setup.template, checked)


def _closed(setup: Setup, count: int, prompt: int, output: int) -> _Closed:
    """So many open requests, for as long as a load takes."""

    def of(output: int, requests: int) -> _Closed:
        sizes = Sizes(prompt, prompt), Sizes(output, output)
        return _Closed(count, requests, RandomWorkload(*sizes))

    def seconds(output: int) -> float:
        return max(_end(_simulated(setup, of(output, count))), 1e-3)

    if (once := seconds(output)) > _MOST_S:
        output = max(int(output * _MOST_S / once), 2)
        once = seconds(output)
    rounds = min(max(round(_LOAD_S / once), 2 if once < _LOAD_S else 1), 40)
    return of(output, count * rounds)


def _measured(url: str, closed: _Closed) -> LoadedRun:
    return _run(url, closed.workload, Load(None, closed.concurrency), closed.requests)


def _run(
    url: str,
    workload: RandomWorkload,
    load: Load,
    requests: int | None,
    duration_s: float | None = None,
    arrivals: Callable[[float | None], Arrivals | None] = lambda rate: None,
) -> LoadedRun:
    plan = LoadPlan(
        workload,
        (load,),
        arrivals,
        conversations=requests,
        duration_s=duration_s,
        warmup=2,
        scrape_s=None,
        text_seed=int(np.random.default_rng().integers(1 << 30)),
    )
    with Campaign(Target.parse(url), plan) as campaign:
        campaign.run(campaign.probe())
    return campaign.runs[0]


def _simulated(setup: Setup, closed: _Closed) -> Fleet:
    fleet = Fleet(setup, Offered(None, closed.concurrency, closed.requests))
    fleet.run(islice(closed.workload.conversations(0), closed.requests))
    return fleet


def _end(fleet: Fleet) -> float:
    """When the last answer was complete."""
    return max(each.end_s for each in fleet.answers)


def _served(fleet: Fleet) -> list[Answer]:
    return [each for each in fleet.answers if each.first_s is not None]


def _ttft(answer: Answer) -> float:
    assert answer.first_s is not None
    return answer.first_s - answer.asked.sent_s


def _template(lone: Sequence[LoadedRun]) -> int:
    """Tokens of a prompt that nobody asked for."""
    more = [
        each.input_tokens - each.input_tokens_asked
        for run in lone
        for each in run.requests
        if each.input_tokens is not None and each.input_tokens_asked is not None
    ]
    return max(round(median(more)), 0) if more else 0


def _of_requests(setup: Setup, alone: Sequence[_Closed], lone: Sequence[LoadedRun]) -> FrontTimes:
    """What a request takes that has the server to itself, besides its steps."""
    without = msgspec.structs.replace(setup.front, request=0.0, prompt_token=0.0, answer=0.0)
    bare = replace(setup, front=without)
    prompts, left = [], []
    for closed, run in zip(alone, lone, strict=True):
        steps = median(_ttft(each) for each in _served(_simulated(bare, closed)))
        taken = median(each.ttft_s for each in run.requests if each.ttft_s is not None)
        prompts.append(closed.workload.input_tokens.low)
        left.append(max(taken - steps, 1e-5))
    matrix = np.stack([np.ones(len(prompts)), np.array(prompts, np.float64)], axis=1)
    request, token = nonnegative(matrix, np.array(left))
    return msgspec.structs.replace(
        setup.front,
        request=request * (1 - _OUTBOUND),
        prompt_token=token,
        answer=request * _OUTBOUND,
        chunk=_CHUNK_S,
    )


def _of_steps(setup: Setup, several: Sequence[_Closed], runs: Sequence[LoadedRun]) -> FrontTimes:
    """What steps take longer beside a server that streams: of the time of whole loads, which their
    simulation does not explain, a part for each step, each of its sequences, each of its seconds
    and each request that finds others there."""
    without = msgspec.structs.replace(
        setup.front, step=0.0, sequence=0.0, stretch=0.0, admitted=0.0
    )
    lines, left = [], []
    for closed, run in zip(several, runs, strict=True):
        fleet = _simulated(replace(setup, front=without), closed)
        work = fleet.replicas[0].work
        lines.append((float(work.steps), float(work.rows), work.busy_s, float(work.joined)))
        left.append(max(run.seconds - _end(fleet), 1e-6 * run.seconds))
    matrix, whole = np.array(lines), np.array([run.seconds for run in runs])
    step, sequence, stretch, admitted = nonnegative(matrix, np.array(left), whole)
    return msgspec.structs.replace(
        setup.front, step=step, sequence=sequence, stretch=stretch, admitted=admitted
    )


def _of_crowds(setup: Setup, several: Sequence[_Closed], runs: Sequence[LoadedRun]) -> FrontTimes:
    """What requests take longer on their way where others are served: the median over loads of what
    is not explained of their median TTFT."""
    bare = replace(setup, front=msgspec.structs.replace(setup.front, crowded=0.0))
    left = [
        median(each.ttft_s for each in run.requests if each.ttft_s is not None)
        - median(map(_ttft, _served(_simulated(bare, closed))))
        for closed, run in zip(several, runs, strict=True)
        if closed.concurrency > 1
    ]
    crowded = max(median(left), 0.0) if left else 0.0
    return msgspec.structs.replace(setup.front, crowded=crowded)


def _check(url: str, setup: Setup) -> dict[str, float]:
    """A load of mixed lengths at random times, measured and simulated."""
    longest = setup.limits.lengths.max_model_len
    workload = RandomWorkload(
        Sizes(8, max(min(400, longest // 3), 8)), Sizes(4, max(min(90, longest // 5), 4))
    )
    flood = Fleet(setup, Offered(None))
    flood.run(islice(workload.conversations(0), 4 * setup.limits.max_num_seqs))
    rate = _CHECK_LOAD * len(flood.answers) / _end(flood)
    load = Load(rate, None)
    run = _run(url, workload, load, None, _CHECK_S, lambda rate: Gamma(rate or 1.0))
    fleet = Fleet(setup, Offered(Gamma(rate), duration_s=_CHECK_S))
    fleet.run(workload.conversations(0))
    served = _served(fleet)
    found = {
        "ttft": summarize([_ttft(each) for each in served]),
        "itl": fleet.replicas[0].front.gaps.summary(),
        "e2el": summarize([each.last_s - each.asked.sent_s for each in served]),
    }
    measured = run.whole.distributions
    return {
        f"{name}.{part}": getattr(simulated, part) / seen - 1
        for name, simulated in found.items()
        for part in ("p50", "p99")
        if simulated is not None
        and name in measured
        and (seen := getattr(measured[name].summary, part)) > 0
    }
