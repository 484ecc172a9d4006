"""Loads that a server is measured under, and their simulations: the same requests at the same
times, so that what differs is the model's error and not the draw's."""

from __future__ import annotations

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
from penstock.simulate.gaps import Gaps
from penstock.simulate.setup import Setup

CLOSED_S: Final = 3.0
"""What a load of requests that replace each other takes, about."""
_MOST_S: Final = 8.0
"""What one round of answers may take; longer ones are made shorter."""


class Seen:
    """What clients saw of a load, or of several: measured or simulated, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Time between the first request and the last token; of several loads, summed."""
        self.ttfts: list[float] = []
        self.gaps = Gaps()
        """Times between chunks."""
        self.e2els: list[float] = []

    def add(self, sent_s: float, first_s: float, last_s: float) -> None:
        """Add an answer, but for the times between its chunks."""
        self.ttfts.append(first_s - sent_s)
        self.e2els.append(last_s - sent_s)

    def join(self, other: Seen) -> None:
        """Add all that was seen of another load."""
        self.seconds += other.seconds
        self.ttfts += other.ttfts
        self.e2els += other.e2els
        self.gaps.join(other.gaps)

    def summaries(self) -> dict[str, Summary]:
        """``ttft``, ``itl`` and ``e2el``, of which there are any."""
        found = {
            "ttft": summarize(self.ttfts),
            "itl": self.gaps.summary(),
            "e2el": summarize(self.e2els),
        }
        return {name: each for name, each in found.items() if each is not None}


@dataclass(frozen=True)
class ServerLoad:
    """Requests of one workload, at random times (``rate``) or so many at all times
    (``concurrency``)."""

    workload: RandomWorkload
    concurrency: int | None = None
    requests: int | None = None
    rate: float | None = None
    duration_s: float | None = None
    seed: int = 0
    """Draws lengths and times."""

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
            seed=self.seed,
            scrape_s=None,
            text_seed=int(np.random.default_rng().integers(1 << 30)),
        )
        with Campaign(Target.parse(url), plan) as campaign:
            campaign.run(campaign.probe())
        return campaign.runs[0]

    def simulated(self, setup: Setup) -> Seen:
        """Play it against what ``setup`` says of a server."""
        fleet = Fleet(
            setup,
            Offered(
                self._arrivals(self.rate),
                self.concurrency,
                self.requests,
                self.duration_s,
                self.seed,
            ),
        )
        fleet.run(islice(self.workload.conversations(self.seed), self.requests))
        found = Seen()
        for each in fleet.answers:
            if each.first_s is not None:
                found.add(each.asked.sent_s, each.first_s, each.last_s)
                found.seconds = max(found.seconds, each.end_s)
        for replica in fleet.replicas:
            found.gaps.join(replica.front.gaps)
        return found

    @staticmethod
    def _arrivals(rate: float | None) -> Arrivals | None:
        return None if rate is None else Gamma(rate)


def alike(prompt: int, output: int) -> RandomWorkload:
    """Requests of the same lengths, in tokens."""
    return RandomWorkload(Sizes(prompt, prompt), Sizes(output, output))


def mixed(longest: int) -> RandomWorkload:
    """Requests of all lengths that fit a context of ``longest`` tokens, none of them long."""
    return RandomWorkload(
        Sizes(8, max(min(400, longest // 3), 8)), Sizes(4, max(min(90, longest // 5), 4))
    )
