"""Engines whose masks come when a test wants them, and what their requests come to."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence

import msgspec

from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan
from penstock.engine.masks import MaskJob, MaskThreads
from penstock.interface.executor import Executor
from penstock.interface.messages import EngineRequest, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.speculate.speculation import Speculation
from support.grammars import FINITE, PADDED, regex
from support.overlap_executor import HashExecutor

LETTERS = regex("[a-z]{30}").spec


class Held:
    """Computes nothing before it is told to."""

    def __init__(self) -> None:
        self.jobs: list[MaskJob] = []
        self.idle_waits = 0

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        self.jobs += [job for _, job in jobs]

    def wait(self, jobs: Sequence[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        assert jobs
        assert not all(job.done for job in jobs)
        self.idle_waits += not all_of_them

    def let_go(self) -> None:
        for job in self.jobs:
            job.run()
        self.jobs.clear()

    def close(self) -> None: ...


class Late(Held):
    """Each mask is as late as chance has it, in any order."""

    def __init__(self, seed: int, often: float) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._often = often
        self.late = 0

    def wait(self, jobs: Sequence[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        super().wait(jobs, seconds, all_of_them=all_of_them)
        if not all_of_them:
            self._some(1.0 - self._often)
            return
        self._some(1.0 - self._often)
        self.late += sum(not job.done for job in jobs)

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        self._some((1.0 - self._often) / 4)
        super().begin(jobs)

    def _some(self, share: float) -> None:
        done = [job for job in self.jobs if self._random.random() < share]
        for job in done:
            job.run()
        self.jobs = [job for job in self.jobs if not job.done]


def made(
    engine_plan: EnginePlan,
    threads: MaskThreads | None,
    executor: Executor | None = None,
    speculation: Speculation | None = None,
    **limits: int,
) -> EngineCore:
    config = msgspec.structs.replace(engine_plan.config, **limits)
    return EngineCore(
        dataclasses.replace(engine_plan, config=config),
        executor or HashExecutor(200, PADDED),
        speculation,
        threads,
    )


def ask(name: str, prompt: bytes = b"a prompt", **params: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=list(prompt),
        params=SamplingParams(**params),  # type: ignore[arg-type]
    )


Stories = dict[tuple[str, int], tuple[list[int], list[object], SequenceUpdate]]
"""Tokens, log-probabilities and the end of each."""


def played(
    core: EngineCore,
    arrivals: Sequence[tuple[int, EngineRequest]],
    aborts: dict[int, str] | None = None,
) -> Stories:
    tokens: dict[tuple[str, int], list[int]] = {}
    logprobs: dict[tuple[str, int], list[object]] = {}
    stories: Stories = {}

    def take(updates: list[SequenceUpdate]) -> None:
        for update in updates:
            name = (update.request_id, update.index)
            assert name not in stories, "output after the end"
            tokens.setdefault(name, []).extend(update.token_ids)
            logprobs.setdefault(name, []).extend(update.logprobs or [])
            if update.finish_reason is not None:
                stories[name] = (tokens[name], logprobs[name], update)

    for now in range(20_000):
        for at, request in arrivals:
            if at == now:
                core.add_request(request)
        if aborts and now in aborts:
            take(core.abort([aborts[now]]))
        take(core.step())
        core.check_integrity()
        if now > 20 and not core.has_work:
            assert core.stats().kv_blocks_used == 0
            core.close()
            return stories
    raise AssertionError("no end in sight")


def mixed(seed: int) -> list[tuple[int, EngineRequest]]:
    rng = random.Random(seed)
    arrivals = []
    for i in range(8):
        language = FINITE[i % len(FINITE)]
        params: dict[str, object] = {
            "max_tokens": rng.choice([3, 20, 60]),
            "temperature": rng.choice([0.0, 0.8, 1.5]),
            "seed": i,
            "n": rng.choice([1, 1, 2, 3]),
            "logprobs": rng.choice([None, 1]),
            "prompt_logprobs": rng.choice([None, None, 1]),
            "repetition_penalty": rng.choice([1.0, 1.2]),
        }
        if i % 4 != 3:
            params["grammar"] = language.spec
        prompt = b"the same beginning of each " * rng.choice([1, 2, 3]) + bytes([65 + i % 3])
        arrivals.append((rng.randrange(12), ask(f"{i}", prompt, **params)))
    return arrivals


def same(late: Stories, timely: Stories) -> None:
    assert late.keys() == timely.keys()
    for name, (tokens, logprobs, end) in late.items():
        if FinishReason.ABORT in (end.finish_reason, timely[name][2].finish_reason):
            shared = min(len(tokens), len(timely[name][0]))  # how far it came is a matter of steps
            assert tokens[:shared] == timely[name][0][:shared]
            continue
        assert (tokens, logprobs) == timely[name][:2]
        assert end.finish_reason is timely[name][2].finish_reason
        assert end.ends_in_text == timely[name][2].ends_in_text


QUICK, SLOW = 1e9, 0.0
"""What takes longer is slow: nothing, and everything."""
LIMITS = {"max_num_seqs": 6, "max_num_batched_tokens": 30}
