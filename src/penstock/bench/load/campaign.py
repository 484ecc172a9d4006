"""A whole load test: a server is probed, and run at one load after the other."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from penstock.bench.load.arrivals import Arrivals
from penstock.bench.load.client_load import WatchedLoop
from penstock.bench.load.connection import Pool
from penstock.bench.load.document import LoadedRun
from penstock.bench.load.energy import EnergyMeter
from penstock.bench.load.figures import figures, steady_part
from penstock.bench.load.load import Load
from penstock.bench.load.probe import Prober, Server
from penstock.bench.load.run import LoadRun, Offer, Ran, Timeouts, Watcher
from penstock.bench.load.scrape import Scraper
from penstock.bench.load.search import Found, RateSearch
from penstock.bench.load.target import Target
from penstock.bench.load.workload import Workload
from penstock.collector import paused
from penstock.service_level import Limit

_ACHIEVED: Final = 0.9
"""A rate that the client did not send at nine tenths is not held: nothing was shown of it."""


@dataclass(frozen=True)
class LoadPlan:
    """What a load test does."""

    workload: Workload
    loads: tuple[Load, ...]
    make_arrivals: Callable[[float | None], Arrivals | None]
    """Makes the arrivals of a load's rate. None lets conversations begin when they were recorded
    to, or at once."""
    repeats: int = 1
    conversations: int | None = None
    duration_s: float | None = None
    warmup: int = 0
    """Conversations before the first run, of which nothing is kept."""
    seed: int = 0
    """Draws lengths and times, the same ones in every repeat."""
    text_seed: int = 0
    """Draws texts, others in each run, so that no run finds the prompts of another in a cache."""
    limits: tuple[Limit, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)
    connect_timeout_s: float = 10.0
    scrape_s: float | None = 1.0
    """Seconds between two looks at the server's metrics; None: none."""
    good_share: float | None = None
    """Makes it a search from the first load's rate: what part of requests has to be good."""


class LoadProgress(Watcher, Protocol):
    """Is told of a load test while it goes on."""

    def begin(self, name: str, plan: LoadPlan, run: LoadRun) -> None:
        """Take note that a run begins."""

    def end(self, run: LoadedRun) -> None:
        """Take note of a run that has ended."""


class Campaign:
    """Runs a plan. Everything happens in one event loop of its own, so connections last from run to
    run."""

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        tokens_of: Callable[[str], int] | None = None,
    ) -> None:
        self._plan = plan
        self._progress: LoadProgress | None = None
        self._runner = asyncio.Runner(loop_factory=WatchedLoop)
        loop = self._runner.get_loop()
        assert isinstance(loop, WatchedLoop)
        self._loop = loop
        self._pool = Pool(target, plan.connect_timeout_s)
        self._target = target
        self._tokens_of = tokens_of
        self.runs: list[LoadedRun] = []
        self.search: Found | None = None

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close()
        self._runner.close()

    def probe(self) -> Server:
        """Find out about the server. Raises PenstockError."""
        return self._runner.run(Prober(self._target, self._pool).server(self._tokens_of))

    def run(self, server: Server, progress: LoadProgress | None = None) -> None:
        """Do all runs; each is in ``runs`` when it has ended. One that is stopped is the last."""
        self._progress = progress
        if self._plan.warmup:
            self._warm_up(server)
        if self._plan.good_share is not None:
            self._search(server, self._plan.good_share)
            return
        for repeat in range(self._plan.repeats):
            # Repeats go round all loads: what drifts meanwhile is in all of them alike.
            for point, load in enumerate(self._plan.loads):
                if self._one(server, point, load, repeat).partial:
                    return

    def _search(self, server: Server, good_share: float) -> None:
        first = self._plan.loads[0]
        assert first.rate is not None
        search = RateSearch(first.rate)
        while (rate := search.next) is not None:
            run = self._one(server, search.runs, Load(rate, first.concurrency), 0)
            if run.partial:
                break
            search.tell(rate, _held(run, good_share))
        self.search = search.found(good_share)

    def _warm_up(self, server: Server) -> None:
        load = replace(self._plan, conversations=self._plan.warmup, duration_s=None)
        run = self._load_run(server, load, self._plan.loads[0], -1)
        self._runner.run(run.run(self._plan.workload.conversations(self._plan.seed)))

    def _load_run(self, server: Server, plan: LoadPlan, load: Load, number: int) -> LoadRun:
        return LoadRun(
            server.target,
            self._pool,
            replace(server.wordbook, salt=self._salt(number)),
            Offer(
                plan.make_arrivals(load.rate),
                load.concurrency,
                plan.conversations,
                plan.duration_s,
                plan.seed,
            ),
            plan.timeouts,
            self._progress,
        )

    def _salt(self, number: int) -> int:
        return (self._plan.text_seed << 20) + number + 1

    def _one(self, server: Server, point: int, load: Load, repeat: int) -> LoadedRun:
        plan, number = self._plan, len(self.runs)
        run = self._load_run(server, plan, load, number)
        if self._progress is not None:
            of = "" if plan.repeats == 1 else f", run {repeat + 1} of {plan.repeats}"
            self._progress.begin(f"{load}{of}", plan, run)
        scraper = None
        if plan.scrape_s is not None:
            scraper = Scraper(server.target, self._pool, plan.scrape_s)
        meter, cpu = EnergyMeter(), time.process_time()
        gc.collect()
        with paused():  # a collection would stop streams for milliseconds
            self._loop.watched.forget()
            ran = self._runner.run(self._scraped(run, scraper))
            client = self._loop.watched.load(time.process_time() - cpu)
        steady = steady_part(ran.records)
        loaded = LoadedRun(
            point=point,
            repeat=repeat,
            arrivals=str(run.offer.arrivals or ("recorded" if _recorded(run) else "closed-loop")),
            rate=load.rate,
            concurrency=load.concurrency,
            text_seed=self._salt(number),
            started=datetime.datetime.fromtimestamp(ran.started, datetime.UTC).isoformat(),
            seconds=ran.seconds,
            partial=ran.partial,
            skipped_turns=ran.skipped_turns,
            whole=figures(ran.records, plan.limits, 0.0, ran.seconds),
            steady=None if steady is None else figures(ran.records, plan.limits, *steady),
            client=client,
            server_metrics=None if scraper is None else scraper.result(),
            energy_j=meter.joules(),
            requests=list(ran.records),
        )
        self.runs.append(loaded)
        if self._progress is not None:
            self._progress.end(loaded)
        return loaded

    async def _scraped(self, run: LoadRun, scraper: Scraper | None) -> Ran:
        conversations = self._plan.workload.conversations(self._plan.seed)
        if scraper is None:
            return await run.run(conversations)
        await scraper.look(lambda: 0.0)
        looking = asyncio.create_task(scraper.keep_looking(lambda: run.seconds))
        try:
            ran = await run.run(conversations)
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
        await scraper.look(lambda: run.seconds)
        return ran


def _recorded(run: LoadRun) -> bool:
    return run.offer.concurrency is None


def _held(run: LoadedRun, good_share: float) -> bool:
    """Whether a run shows that its rate is carried: enough good requests, and the rate was sent."""
    share = run.whole.good_share
    due = max((record.scheduled_s for record in run.requests), default=0.0)
    sent = max((record.sent_s for record in run.requests), default=0.0)
    return share is not None and share >= good_share and due >= _ACHIEVED * sent
