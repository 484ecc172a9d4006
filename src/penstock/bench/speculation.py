"""Speculation against plain decoding of the same engine, on the same prompts, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
from msgspec.structs import replace

from penstock.bench.machine import Machine
from penstock.bench.progress import Progress, Stopped, Unseen
from penstock.bench.scripted import ScriptedProposer
from penstock.bench.session import Session
from penstock.bench.spec_runs import SpecRuns, SpecWorkload, Turns
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.loader import EnginePlan, plan_engine
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
    def name(self) -> str:
        """What it is called in results."""
        return f"scripted:alpha={self.alpha:g},cost={self.cost:g},num_tokens={self.num_tokens}"

    @property
    def speedup(self) -> float:
        """Speed-up that the formula gives, assuming that a step takes no longer when it verifies
        several tokens."""
        return formula(self.alpha, self.num_tokens) / (1 + self.cost * self.num_tokens)


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


@dataclass(frozen=True)
class SpecComparison:
    """What was measured of every method, and of what."""

    results: list[SpecResult]
    workload: SpecWorkload
    engine: EnginePlan
    """The engine that decodes plainly. Those that draft are the same but for their methods."""
    machine: Machine


def run_speculation(
    config: EngineConfig,
    methods: Sequence[SpeculativeConfig | Scripted],
    prompts: Sequence[str | list[int]],
    params: SamplingParams,
    batch_size: int,
    repeats: int,
    progress: Progress | None = None,
) -> SpecComparison:
    """Time each of ``methods``; raises what loading an engine raises, and RequestError.

    If ``progress`` stops it, results are of the methods and repeats that were done until then.
    """
    progress = progress or Unseen()
    plain_config = replace(config, speculative=None)
    tokens = _tokens(plain_config, prompts)  # before weights are read: there may be no tokenizer
    with Session.open(plain_config, progress=progress) as plain:
        workload = SpecWorkload(tokens, params, batch_size, repeats)
        for request in workload.requests():
            plain.core.check(request)

        def measure(method: SpeculativeConfig | Scripted) -> SpecResult:
            if isinstance(method, Scripted):
                return _measure_scripted(method, plain, workload, progress)
            runs = SpecRuns(describe(method), workload, progress)
            with Session.open(replace(config, speculative=method), progress=progress) as drafting:
                return _result(runs.method, Turns.take(runs, plain.core, drafting.core, repeats))

        def measure_all() -> list[SpecResult]:
            results: list[SpecResult] = []
            with contextlib.suppress(Stopped):
                for method in methods:
                    results.append(measure(method))
                    if results[-1].repeats < repeats:
                        break
            return results

        results, machine = plain.measured(measure_all)
        return SpecComparison(results, workload, plain.engine_plan, machine)


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
    runs = SpecRuns(method.name, workload, progress)
    runs.run(plain.core, "warm-up")
    steps = plain.core.stats().steps
    seconds, expected = runs.run(plain.core, "plain")
    step = seconds / (plain.core.stats().steps - steps)
    texts = {f"{i}": output for i, output in enumerate(expected)}
    proposer = ScriptedProposer(texts, method.alpha, method.cost * step, plain.vocab_size)
    speculation = Speculation(proposer, method.num_tokens)
    core = EngineCore(plain.engine_plan, plain.meter, speculation)
    turns = Turns.take(runs, plain.core, core, workload.repeats)
    return _result(method.name, turns, method.speedup)


def _result(name: str, turns: Turns, formula_speedup: float | None = None) -> SpecResult:
    """Figures of ``turns``; the formula's speed-up is that of the acceptance and the drafting time
    that they had, unless it is given."""
    drafts, speedups = turns.drafts, turns.speedups
    count = max(drafts.drafts, 1)
    acceptance = drafts.accepted_tokens / max(drafts.accepted_tokens + drafts.rejections, 1)
    depth = drafts.draft_levels / count
    tokens_per_step = formula(acceptance, depth)
    if formula_speedup is None:
        formula_speedup = _formula_speedup(turns, tokens_per_step)
    return SpecResult(
        method=name,
        plain_tokens_per_s=turns.plain_tokens_per_s,
        tokens_per_s=turns.tokens_per_s,
        speedup=median(speedups),
        speedup_range=(min(speedups), max(speedups)),
        steps=turns.steps / turns.repeats,
        steps_with_drafts=drafts.steps / turns.repeats,
        tokens_per_draft=drafts.draft_tokens / count,
        depth=depth,
        accepted_per_draft=drafts.accepted_tokens / count,
        acceptance=acceptance,
        accepted_by_position=[accepted / count for accepted in drafts.accepted_by_position],
        formula_tokens_per_step=tokens_per_step,
        formula_speedup=formula_speedup,
        draft_share=drafts.draft_seconds / sum(turns.seconds),
        repeats=turns.repeats,
        same=turns.same,
    )


def _formula_speedup(turns: Turns, tokens_per_step: float) -> float:
    """Speed-up if verifying took no time and a step with a draft brought ``tokens_per_step``.

    All is counted for one run, in places of sequences in steps: what such a place takes is the time
    of a plain token.
    """
    repeats, drafts = turns.repeats, turns.drafts
    drafted = drafts.drafts / repeats
    undrafted = max(turns.tokens - drafted - drafts.accepted_tokens / repeats, 0.0)
    making = drafts.draft_seconds / repeats * turns.plain_tokens_per_s
    return (drafted * tokens_per_step + undrafted) / (drafted + undrafted + making)


def _tokens(config: EngineConfig, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    if all(isinstance(prompt, list) for prompt in prompts):
        return [list(prompt) for prompt in prompts if isinstance(prompt, list)]
    from penstock.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(plan_engine(config).config.tokenizer_path)
    return [tokenizer.encode(p) if isinstance(p, str) else list(p) for p in prompts]
