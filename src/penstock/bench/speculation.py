"""Speculation against plain decoding of the same engine, on the same prompts, in turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from penstock.bench.machine import Machine
from penstock.bench.progress import Progress, Stopped, Unseen
from penstock.bench.scripted import ScriptedProposer
from penstock.bench.session import Session
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import plan_engine
from penstock.errors import EngineDeadError
from penstock.interface.messages import DraftStats, EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.speculate.speculation import Speculation
from penstock.speculative_config import SpeculativeConfig, describe


class Scripted(msgspec.Struct, frozen=True):
    """Drafts that are right with probability ``alpha``, of which each token takes ``cost`` times
    what a plain step takes."""

    alpha: float
    cost: float
    num_tokens: int

    @property
    def speedup(self) -> float:
        """Speed-up that the formula gives, assuming that a step takes no longer when it verifies
        several tokens."""
        return formula(self.alpha, self.num_tokens) / (1 + self.cost * self.num_tokens)


class SpecWorkload(msgspec.Struct, frozen=True):
    prompts: list[list[int]]
    params: SamplingParams
    batch_size: int  # requests that run together
    repeats: int


class SpecResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one drafting method. Times are of whole runs, prefill included, and medians over
    the repeats."""

    method: str
    plain_tokens_per_s: float
    tokens_per_s: float
    speedup: float  # each repeat's against the plain run just before it
    speedup_range: tuple[float, float]  # lowest and highest of the repeats
    steps: float  # of one run on average, those of prefill included
    steps_with_drafts: float
    tokens_per_draft: float
    """Mean number of tokens in a draft. Each of them is a row of a step."""
    depth: float
    """Mean length of a draft's longest path, in tokens. The path of a chain is the whole draft."""
    accepted_per_draft: float
    acceptance: float
    """Share of draft tokens that were accepted, of those whose predecessors were all accepted."""
    accepted_by_position: list[float]
    """Share, for each draft position, of all drafts whose token at that position was
    accepted."""
    formula_tokens_per_step: float
    """Tokens per step by the formula ``(1 - a^(K+1)) / (1 - a)``, where a is ``acceptance`` and K
    is ``depth``; to be compared with 1 + accepted_per_draft."""
    formula_speedup: float
    """Speed-up if a step took no longer for verifying drafts, given the acceptance, the number of
    drafts and the drafting time that were measured. For a scripted draft it is
    :attr:`Scripted.speedup`, which uses the scripted values instead."""
    draft_share: float
    """Share of the run time that was spent on making drafts."""
    repeats: int
    """Number of runs that were measured: fewer than asked for if it was stopped."""
    same: bool
    """Whether every output was equal to that of plain decoding."""


def run_speculation(
    config: EngineConfig,
    methods: Sequence[SpeculativeConfig | Scripted],
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    batch_size: int,
    repeats: int,
    progress: Progress | None = None,
) -> tuple[list[SpecResult], Machine]:
    """Time each of ``methods``; raises what loading an engine raises, and RequestError.

    If ``progress`` stops it, results are of the methods and repeats that were done until then.
    """
    progress = progress or Unseen()
    alone = replace(config, speculative=None)
    tokens = _tokens(alone, prompts)  # before weights are read: there may be no tokenizer
    with Session.open(alone, progress=progress) as plain:
        workload = SpecWorkload(tokens, params, batch_size, repeats)
        for request in _requests(workload):
            plain.core.check(request)

        def measure(method: SpeculativeConfig | Scripted) -> SpecResult:
            if isinstance(method, Scripted):
                return _measure_scripted(method, plain, workload, progress)
            with Session.open(replace(config, speculative=method), progress=progress) as drafting:
                return _measure(describe(method), plain.core, drafting.core, workload, progress)

        def measure_all() -> list[SpecResult]:
            results: list[SpecResult] = []
            with contextlib.suppress(Stopped):
                for method in methods:
                    results.append(measure(method))
                    if results[-1].repeats < repeats:
                        break
            return results

        return plain.measured(measure_all)


def formula(acceptance: float, length: float) -> float:
    """Expected tokens a step of drafts of ``length`` tokens, each accepted with ``acceptance``."""
    if acceptance >= 1.0:
        return length + 1
    reached: float = acceptance ** (length + 1)
    return (1 - reached) / (1 - acceptance)


def _measure_scripted(
    method: Scripted, plain: Session, workload: SpecWorkload, progress: Progress
) -> SpecResult:
    """A second engine around the same executor takes turns with the first: each run leaves nothing
    behind that the other could find."""
    name = f"scripted:alpha={method.alpha:g},cost={method.cost:g},num_tokens={method.num_tokens}"
    runs = _Runs(name, workload, progress)
    runs.run(plain.core, "warm-up")
    steps = plain.core.stats().steps
    seconds, expected = runs.run(plain.core, "plain")
    step = seconds / (plain.core.stats().steps - steps)
    texts = {f"{i}": output for i, output in enumerate(expected)}
    proposer = ScriptedProposer(texts, method.alpha, method.cost * step, plain.vocab_size)
    speculation = Speculation(proposer, method.num_tokens)
    core = EngineCore(plain.engine_plan, plain.meter, speculation)
    return _measure(name, plain.core, core, workload, progress, method.speedup)


def _measure(
    name: str,
    plain: EngineCore,
    drafting: EngineCore,
    workload: SpecWorkload,
    progress: Progress,
    formula_speedup: float | None = None,
) -> SpecResult:
    runs = _Runs(name, workload, progress)
    _, expected = runs.run(plain, "warm-up")
    _, outputs = runs.run(drafting, "warm-up")  # also lets the controller measure
    same = outputs == expected
    plain_times: list[float] = []
    times: list[float] = []
    before = after = drafting.stats()
    try:
        for i in range(workload.repeats):
            what = f"run {i + 1} of {workload.repeats}"
            alone = runs.run(plain, f"{what}, plain")[0]
            seconds, outputs = runs.run(drafting, f"{what}, with drafts")
            plain_times.append(alone)
            times.append(seconds)
            after = drafting.stats()
            same = same and outputs == expected
    except Stopped:
        if not times:
            raise
    repeats = len(times)
    ratios = [alone / seconds for alone, seconds in zip(plain_times, times, strict=True)]
    assert before.drafts is not None
    assert after.drafts is not None
    drafts = _since(before.drafts, after.drafts)
    tokens = sum(map(len, expected))
    count = max(drafts.drafts, 1)
    tried = drafts.accepted_tokens + drafts.rejections
    acceptance = drafts.accepted_tokens / max(tried, 1)
    depth = drafts.draft_levels / count
    expected_tokens = formula(acceptance, depth)
    # Of one run, in sequences that a step has: with drafts, and without.
    drafted = drafts.drafts / repeats
    alone = max(tokens - drafted - drafts.accepted_tokens / repeats, 0.0)
    making = drafts.draft_seconds / repeats / (median(plain_times) / tokens)
    by_formula = (drafted * expected_tokens + alone) / (drafted + alone + making)
    return SpecResult(
        method=name,
        plain_tokens_per_s=tokens / median(plain_times),
        tokens_per_s=tokens / median(times),
        speedup=median(ratios),
        speedup_range=(min(ratios), max(ratios)),
        steps=(after.steps - before.steps) / repeats,
        steps_with_drafts=drafts.steps / repeats,
        tokens_per_draft=drafts.draft_tokens / count,
        depth=depth,
        accepted_per_draft=drafts.accepted_tokens / count,
        acceptance=acceptance,
        accepted_by_position=[accepted / count for accepted in drafts.accepted_by_position],
        formula_tokens_per_step=expected_tokens,
        formula_speedup=by_formula if formula_speedup is None else formula_speedup,
        draft_share=drafts.draft_seconds / sum(times),
        repeats=repeats,
        same=same,
    )


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


def _tokens(config: EngineConfig, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    if all(isinstance(prompt, list) for prompt in prompts):
        return [list(prompt) for prompt in prompts if isinstance(prompt, list)]
    from penstock.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(plan_engine(config).config.tokenizer_path)
    return [tokenizer.encode(p) if isinstance(p, str) else list(p) for p in prompts]


def _requests(workload: SpecWorkload) -> list[EngineRequest]:
    return [
        EngineRequest(request_id=f"{i}", prompt_token_ids=prompt, params=workload.params)
        for i, prompt in enumerate(workload.prompts)
    ]


class _Runs:
    """The runs of one method, one after the other. Nothing is cached from run to run."""

    def __init__(self, method: str, workload: SpecWorkload, progress: Progress) -> None:
        self._method, self._workload, self._progress = method, workload, progress

    def run(self, core: EngineCore, what: str) -> tuple[float, list[list[int]]]:
        """Seconds, and what each prompt's request said. Raises Stopped."""
        workload = self._workload
        requests = _requests(workload)
        outputs: list[list[int]] = [[] for _ in requests]
        waiting = list(reversed(requests))
        running = 0
        core.reset_prefix_cache()
        each = workload.params.max_tokens or 0
        self._progress.begin(f"{self._method}, {what}", each * len(requests))
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
