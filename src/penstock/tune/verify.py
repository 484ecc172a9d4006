"""Candidates measured: each is served and loaded as ``penstock bench serve`` does, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from penstock.bench.load.campaign import Campaign, LoadPlan, LoadProgress
from penstock.bench.load.confidence import repeated
from penstock.bench.load.document import LoadedRun
from penstock.bench.load.figures import Figures
from penstock.bench.load.target import Target
from penstock.errors import PenstockError
from penstock.profile import Figure, Served
from penstock.tune.load import TraceLoad
from penstock.tune.space import Candidate

_WARMUP: Final = 3
"""Conversations before each run."""

Serve = Callable[[Candidate], AbstractContextManager[str]]
"""Starts a server of a candidate; gives its URL when it is ready, and ends it behind the block."""


@dataclass
class Verifier:
    """Measures candidates, each in a server of its own that has the machine to itself.

    A round goes through all candidates, so what drifts meanwhile is in all of them alike; its texts
    are its own, and the same for all.
    """

    load: TraceLoad
    duration_s: float
    """No conversation begins later."""
    rounds: int
    serve: Serve
    progress: LoadProgress | None = None
    announce: Callable[[str], None] = lambda text: None
    stopped: Callable[[], bool] = lambda: False
    """Whether somebody has asked it to stop, which ends servers that start, too."""
    measured: dict[Candidate, list[Figures]] = field(default_factory=dict)
    """The runs of each that went to their ends."""
    failed: dict[str, str] = field(default_factory=dict)
    """Candidates that could not be served, by name, and why."""

    def run(self, candidates: Mapping[Candidate, str]) -> bool:
        """Measure candidates, which have names; returns whether all was done, and not stopped.

        Raises PenstockError where the first does not start, or does not answer; others that do not
        are left out.
        """
        first = next(iter(candidates))
        for number in range(self.rounds):
            for candidate, name in candidates.items():
                if name in self.failed:
                    continue
                self.announce(f"{name}, round {number + 1} of {self.rounds}")
                try:
                    with self.serve(candidate) as url:
                        run = self._loaded(url, number)
                except PenstockError as error:
                    if candidate == first or self.stopped():
                        raise
                    self.failed[name] = str(error)
                    continue
                if run.partial:
                    return False
                self.measured.setdefault(candidate, []).append(run.whole)
        return True

    def _loaded(self, url: str, number: int) -> LoadedRun:
        load = self.load
        plan = LoadPlan(
            load.workload,
            (load.load,),
            load.arrivals,
            duration_s=self.duration_s,
            warmup=_WARMUP,
            seed=load.seed,
            text_seed=load.seed + number,
            limits=load.limits,
            scrape_s=None,
        )
        with Campaign(Target.parse(url), plan) as campaign:
            campaign.run(campaign.probe(), self.progress)
            return campaign.runs[0]


def served_by(runs: Sequence[Figures]) -> Served:
    """The means over runs of one candidate, with intervals where there are several."""

    def mean(values: Sequence[float | None]) -> Figure | None:
        known = [each for each in values if each is not None]
        if not known:
            return None
        found = repeated(known)
        if found is None:
            return Figure(mean=known[0])
        return Figure(mean=found.mean, low=found.low, high=found.high)

    def p99(name: str) -> Figure | None:
        found = [run.distributions.get(name) for run in runs]
        return mean([None if each is None else each.summary.p99 for each in found])

    failed = mean([run.failed / max(run.requests, 1) for run in runs])
    tokens = mean([run.output_tokens_per_s or 0.0 for run in runs])
    assert failed is not None, "there is a run"
    assert tokens is not None, "there is a run"
    return Served(
        goodput_per_s=mean([run.goodput_per_s for run in runs]),
        good_share=mean([run.good_share for run in runs]),
        failed_share=failed,
        output_tokens_per_s=tokens,
        ttft_p99=p99("ttft"),
        tpot_p99=p99("tpot"),
        e2el_p99=p99("e2el"),
    )
