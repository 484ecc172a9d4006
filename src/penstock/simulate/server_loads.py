"""Loads that a server is measured under, and their simulations: the same requests at the same
times, so that what differs is the model's error and not the draw's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from penstock.bench.load.arrivals import Arrivals, Gamma
from penstock.bench.load.campaign import Campaign, LoadPlan
from penstock.bench.load.document import LoadedRun
from penstock.bench.load.load import Load
from penstock.bench.load.sizes import Sizes
from penstock.bench.load.target import Target
from penstock.bench.load.workload import RandomWorkload
from penstock.bench.stats import Summary, summarize
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import Answer
from penstock.simulate.setup import Setup

CLOSED_S: Final = 3.0
"""What a load of requests that replace each other takes, about."""
_MOST_S: Final = 8.0
"""What one round of answers may take; longer ones are made shorter."""


@dataclass(frozen=True)
class Seen:
    """What clients saw of a load, measured or simulated, in seconds."""

    seconds: float
    """Time between the first request and the last token."""
    ttft: Summary
    itl: Summary | None
    """None where no answer had two chunks."""
    e2el: Summary


@dataclass(frozen=True)
class ServerLoad:
    """Requests of one workload, at random times (``rate``) or so many at all times
    (``concurrency``)."""

    workload: RandomWorkload
    concurrency: int | None = None
    requests: int | None = None
    rate: float | None = None
    duration_s: float | None = None

    @classmethod
    def closed(cls, setup: Setup, count: int, workload: RandomWorkload) -> ServerLoad:
        """``count`` requests open at all times, for as long as a load takes by the simulation of
        ``setup``; answers that take too long there are made shorter."""

        def seconds(workload: RandomWorkload) -> float:
            return max(cls(workload, count, count).simulated(setup).seconds, 1e-3)

        if (once := seconds(workload)) > _MOST_S:
            part, output = _MOST_S / once, workload.output_tokens
            shorter = Sizes(max(int(output.low * part), 2), max(int(output.high * part), 2))
            workload = replace(workload, output_tokens=shorter)
            once = seconds(workload)
        rounds = min(max(round(CLOSED_S / once), 2 if once < CLOSED_S else 1), 40)
        return cls(workload, count, count * rounds)

    def measured(self, url: str) -> LoadedRun:
        """Load the server at ``url``. Raises PenstockError where it does not answer."""
        plan = LoadPlan(
            self.workload,
            (Load(self.rate, self.concurrency),),
            self._arrivals,
            conversations=self.requests,
            duration_s=self.duration_s,
            warmup=2,
            scrape_s=None,
            text_seed=int(np.random.default_rng().integers(1 << 30)),
        )
        with Campaign(Target.parse(url), plan) as campaign:
            campaign.run(campaign.probe())
        return campaign.runs[0]

    def simulated(self, setup: Setup) -> Seen:
        """Play it against what ``setup`` says of a server. Raises ValueError where no request is
        answered."""
        fleet = Fleet(
            setup,
            Offered(self._arrivals(self.rate), self.concurrency, self.requests, self.duration_s),
        )
        fleet.run(islice(self.workload.conversations(0), self.requests))
        served = [each for each in fleet.answers if each.first_s is not None]
        return Seen(
            max((each.end_s for each in served), default=0.0),
            _summary([ttft(each) for each in served]),
            fleet.replicas[0].front.gaps.summary(),
            _summary([each.last_s - each.asked.sent_s for each in served]),
        )

    @staticmethod
    def _arrivals(rate: float | None) -> Arrivals | None:
        return None if rate is None else Gamma(rate)


def seen(run: LoadedRun) -> Seen:
    """What clients saw of a load that was measured. Raises ValueError where no request was
    answered."""
    found = run.whole.distributions
    itl = found["itl"].summary if "itl" in found else None
    if "ttft" not in found or "e2el" not in found:
        raise ValueError("no request of a load was answered")
    return Seen(run.seconds, found["ttft"].summary, itl, found["e2el"].summary)


def alike(prompt: int, output: int) -> RandomWorkload:
    """Requests of the same lengths, in tokens."""
    return RandomWorkload(Sizes(prompt, prompt), Sizes(output, output))


def mixed(longest: int) -> RandomWorkload:
    """Requests of all lengths that fit a context of ``longest`` tokens, none of them long."""
    return RandomWorkload(
        Sizes(8, max(min(400, longest // 3), 8)), Sizes(4, max(min(90, longest // 5), 4))
    )


def ttft(answer: Answer) -> float:
    """Time to the first token of an answer that has one."""
    assert answer.first_s is not None
    return answer.first_s - answer.asked.sent_s


def _summary(samples: Sequence[float]) -> Summary:
    found = summarize(samples)
    if found is None:
        raise ValueError("no request of a load was answered")
    return found
