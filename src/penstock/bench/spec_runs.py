"""Runs of the same prompts by two engines in turns, one that drafts and one that does not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from penstock.bench.progress import Progress, Stopped
from penstock.engine.core import EngineCore
from penstock.errors import EngineDeadError
from penstock.interface.messages import DraftStats, EngineRequest
from penstock.sampling.params import SamplingParams


@dataclass(frozen=True)
class SpecWorkload:
    """What each run says."""

    prompts: list[list[int]]
    params: SamplingParams
    batch_size: int  # requests that run together
    repeats: int

    def requests(self) -> list[EngineRequest]:
        """One for each prompt, named by its place."""
        return [
            EngineRequest(request_id=f"{i}", prompt_token_ids=prompt, params=self.params)
            for i, prompt in enumerate(self.prompts)
        ]


class SpecRuns:
    """The runs of one method, one after the other. Nothing is cached from run to run."""

    def __init__(self, method: str, workload: SpecWorkload, progress: Progress) -> None:
        self.method, self._workload, self._progress = method, workload, progress

    def run(self, core: EngineCore, what: str) -> tuple[float, list[list[int]]]:
        """Seconds, and what each prompt's request said. Raises Stopped."""
        workload = self._workload
        requests = workload.requests()
        outputs: list[list[int]] = [[] for _ in requests]
        waiting = list(reversed(requests))
        running = 0
        core.reset_prefix_cache()
        each = workload.params.max_tokens or 0
        self._progress.begin(f"{self.method}, {what}", each * len(requests))
        start = time.perf_counter()
        while waiting or running:
            while waiting and running < workload.batch_size:
                core.add_request(waiting.pop())
                running += 1
            made = 0
            for update in core.step():
                if update.error is not None:
                    raise EngineDeadError(f"a benchmark request failed: {update.error}")
                outputs[int(update.request_id)] += update.token_ids
                made += len(update.token_ids)
                running -= update.finish_reason is not None
            self._progress.advance(made)
        return time.perf_counter() - start, outputs


@dataclass(frozen=True)
class Turns:
    """The measured runs of both engines. Each with drafts follows the plain one of the same
    index."""

    plain_seconds: list[float]
    seconds: list[float]
    tokens: int
    """Output tokens of one run, the same in all."""
    steps: int
    """Steps of all runs with drafts."""
    drafts: DraftStats
    """Sums over all runs with drafts."""
    same: bool
    """Whether every output was equal to that of plain decoding."""

    @classmethod
    def take(cls, runs: SpecRuns, plain: EngineCore, drafting: EngineCore, repeats: int) -> Turns:
        """Run both in turns, after a warm-up of each; fewer than ``repeats`` times if stopped.

        Raises Stopped before the first turn is done.
        """
        _, expected = runs.run(plain, "warm-up")
        _, outputs = runs.run(drafting, "warm-up")  # also lets the controller measure
        same = outputs == expected
        plain_seconds: list[float] = []
        seconds: list[float] = []
        before = after = drafting.stats()
        try:
            for i in range(repeats):
                what = f"run {i + 1} of {repeats}"
                plain_run, _ = runs.run(plain, f"{what}, plain")
                drafting_run, outputs = runs.run(drafting, f"{what}, with drafts")
                plain_seconds.append(plain_run)
                seconds.append(drafting_run)
                after = drafting.stats()
                same = same and outputs == expected
        except Stopped:
            if not seconds:
                raise
        assert before.drafts is not None
        assert after.drafts is not None
        return cls(
            plain_seconds=plain_seconds,
            seconds=seconds,
            tokens=sum(map(len, expected)),
            steps=after.steps - before.steps,
            drafts=_since(before.drafts, after.drafts),
            same=same,
        )

    @property
    def repeats(self) -> int:
        return len(self.seconds)

    @property
    def speedups(self) -> list[float]:
        """Each run's with drafts against the plain run before it."""
        pairs = zip(self.plain_seconds, self.seconds, strict=True)
        return [plain / drafting for plain, drafting in pairs]

    @property
    def plain_tokens_per_s(self) -> float:
        return self.tokens / median(self.plain_seconds)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / median(self.seconds)


def _since(before: DraftStats, after: DraftStats) -> DraftStats:
    pairs = zip(before.accepted_by_position, after.accepted_by_position, strict=True)
    return DraftStats(
        steps=after.steps - before.steps,
        drafts=after.drafts - before.drafts,
        draft_tokens=after.draft_tokens - before.draft_tokens,
        draft_levels=after.draft_levels - before.draft_levels,
        accepted_tokens=after.accepted_tokens - before.accepted_tokens,
        rejections=after.rejections - before.rejections,
        accepted_by_position=[new - old for old, new in pairs],
        draft_seconds=after.draft_seconds - before.draft_seconds,
    )
