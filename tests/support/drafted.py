"""Engines whose model is a hash of what it reads, played with drafts and without."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import strategies as st

from penstock.engine.loader import EnginePlan
from penstock.interface.executor import Executor
from penstock.interface.messages import EngineStats
from penstock.sampling.params import SamplingParams
from penstock.scheduler.sequence import SequenceState
from penstock.speculate.draft import Proposer
from penstock.speculate.speculation import Speculation
from penstock.speculate.typical import Typical
from support.oracle import Recorder, Texts
from support.overlap_executor import Deferred, HashExecutor
from support.overlapped import POISON, VOCAB, check, make_core
from support.stories import Arrival, Stories, arrivals, play, same


@dataclass(frozen=True)
class Play:
    """Requests, and what they have to share."""

    listed: list[Arrival]
    seqs: int
    more: int
    """Tokens of a step beyond one for each sequence."""
    num_blocks: int
    num_tokens: int
    """Most tokens of a draft."""


plays: st.SearchStrategy[Play] = st.builds(
    Play,
    listed=st.lists(arrivals(), min_size=1, max_size=6),
    seqs=st.integers(1, 5),
    more=st.sampled_from([0, 7, 100]),
    num_blocks=st.sampled_from([5, 6, 8, 30]),
    num_tokens=st.integers(1, 9),
)


class Fickle(Speculation):
    """Drafts before some steps alone, as chance has it: the others may overlap."""

    def __init__(self, proposer: Proposer, num_tokens: int, quiet: float, **options: Any) -> None:
        """``quiet``: the probability that a step behind one in flight has no drafts."""
        super().__init__(proposer, num_tokens, **options)
        self._quiet = quiet
        self._random = random.Random(3)

    def may_draft(self, running: Iterable[SequenceState], budget: int) -> bool:
        return super().may_draft(running, budget) and self._random.random() >= self._quiet


def check_same(
    engine_plan: EnginePlan,
    play: Play,
    make: Callable[[Texts], Proposer],
    quiet: float | None = None,
) -> None:
    """What is told with the proposer that is made for these texts is what is told without.

    ``quiet``: see :func:`run_core`.
    """
    limits: dict[str, Any] = {
        "max_num_seqs": play.seqs,
        "max_num_batched_tokens": play.seqs + play.more,
    }
    shared = (play.num_tokens, play.num_blocks)
    recorder = Recorder()
    plain, _ = run_core(engine_plan, play.listed, recorder, *shared, **limits)
    proposer = make(recorder.texts())
    stories, _ = run_core(engine_plan, play.listed, proposer, *shared, quiet=quiet, **limits)
    same(stories, plain)


def run_core(
    engine_plan: EnginePlan,
    listed: list[Arrival],
    proposer: Proposer,
    num_tokens: int = 4,
    num_blocks: int = 30,
    typical: Typical | None = None,
    quiet: float | None = None,
    **limits: Any,
) -> tuple[Stories, EngineStats]:
    """``quiet``: steps overlap, where nothing is drafted by this probability; None: they do not.
    ``num_blocks`` are of each group of layers."""
    windows = engine_plan.plan.kv_groups.windows
    inner = HashExecutor(num_blocks * len(windows), VOCAB, POISON, windows)
    executor: Executor = inner
    speculation = Speculation(proposer, num_tokens, typical=typical)
    if quiet is not None:
        executor = Deferred(inner, failed_token=9)
        speculation = Fickle(proposer, num_tokens, quiet, typical=typical)
    core = make_core(engine_plan, executor, speculation, **limits)
    stories = play(core, listed, lambda: check(core, inner))
    stats = core.stats()
    assert stats.kv_blocks_used == 0
    core.close()
    return stories, stats


def mixed() -> list[Arrival]:
    """Requests of every kind that together need more blocks than there are."""
    kinds = [
        SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.7, max_tokens=100, seed=1, n=2, logprobs=2),
        SamplingParams(temperature=1.3, max_tokens=100, seed=2, repetition_penalty=1.3),
        SamplingParams(temperature=0.7, max_tokens=100, seed=3, min_tokens=20, frequency_penalty=1),
        SamplingParams(temperature=0, max_tokens=100, stop_token_ids=(5, 6), prompt_logprobs=1),
    ]
    return [
        Arrival(
            i,
            [i + 4] * 9,
            msgspec.structs.replace(params, logit_bias={POISON: -100.0}),
            0,
            20 if i == 3 else None,
            None,
            False,
        )
        for i, params in enumerate(kinds)
    ]


LIMITS: dict[str, Any] = {"max_num_seqs": 6, "max_num_batched_tokens": 30}


def plain_stories(engine_plan: EnginePlan) -> tuple[Stories, Texts, EngineStats]:
    recorder = Recorder()
    stories, stats = run_core(engine_plan, mixed(), recorder, num_blocks=9, **LIMITS)
    return stories, recorder.texts(), stats
