"""What is drawn along drafts is distributed as without: chains and trees, right and wrong ones."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from support.distributions import PARAMS, PROMPT, VOCAB, Model, chi_square

from penstock.interface.messages import EngineRequest
from penstock.interface.sampler import NewSequence
from penstock.interface.step import StepResult
from penstock.sampling.reference import NumpySampler
from penstock.scheduler.draft import Draft, draft_tree
from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.sequence import SequenceState, make_sequences
from penstock.speculate.typical import Typical
from penstock.speculate.verify import Verified, verify

COUNTS = pytest.mark.parametrize("samples", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
_TOGETHER = 500
Drafter = Callable[[int], Draft]
"""Drafts by the number of a sample, whose draws it does not know."""


def chain(seed: int) -> Draft:
    tokens = np.random.default_rng(seed).integers(0, VOCAB, 2)
    return Draft(array("i", tokens.tolist()))


def tree(seed: int) -> Draft:
    """Three candidates, and two behind each of the first two."""
    rng = np.random.default_rng(seed)
    tokens = array("i", [token for n in (3, 2, 2) for token in rng.permutation(VOCAB)[:n].tolist()])
    return draft_tree(tokens, array("i", [-1, -1, -1, 0, 0, 1, 1]))


def sequence(number: int, sampler: NumpySampler) -> SequenceState:
    params = msgspec.structs.replace(PARAMS, max_tokens=8)
    made = make_sequences(
        EngineRequest(request_id=f"{number}", prompt_token_ids=PROMPT, params=params), number
    )
    made.sampling_state = sampler.state(NewSequence(params, made.key, PROMPT, VOCAB))
    return made


def step_of(samples: list[SequenceState], drafts: list[Draft]) -> ScheduledStep:
    rows, first = [], 0
    scheduled = []
    for each, draft in zip(samples, drafts, strict=True):
        count = 1 + len(draft)
        scheduled.append(ScheduledSequence(each, 1, count, count, (each,), draft=draft))
        rows.append(first)
        first += count
    drafted = sum(map(len, drafts))
    return ScheduledStep(scheduled, samples, rows, [], first, first, num_drafted=drafted)


def verified(
    model: Model, drafter: Drafter, numbers: range, typical: Typical | None = None
) -> Verified:
    sampler = NumpySampler()
    samples = [sequence(number, sampler) for number in numbers]
    drafts = [drafter(number) for number in numbers]
    last = [token for draft in drafts for token in (PROMPT[-1], *draft.token_ids)]
    logits = model.logits[last]
    result = StepResult(logits, logits.argmax(axis=1).astype(np.int32))
    return verify(sampler, result, step_of(samples, drafts), typical=typical)


def outcomes(
    model: Model, drafter: Drafter, samples: int
) -> tuple[Counter[tuple[int, ...]], Counter[int]]:
    """First tokens, and how many tokens each draft brought."""
    seen: Counter[tuple[int, ...]] = Counter()
    lengths: Counter[int] = Counter()
    for first in range(0, samples, _TOGETHER):
        for tokens in verified(model, drafter, range(first, first + _TOGETHER)).tokens:
            seen[tuple(tokens[:1])] += 1
            lengths[len(tokens)] += 1
    return seen, lengths


def pairs(model: Model, drafter: Drafter, samples: int) -> Counter[tuple[int, ...]]:
    """First two tokens of those whose first was drafted, completed by a draft of nothing else."""
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(0, samples, _TOGETHER):
        for tokens in verified(model, drafter, range(first, first + _TOGETHER)).tokens:
            if len(tokens) > 1:
                seen[tuple(tokens[:2])] += 1
    return seen


@COUNTS
@pytest.mark.parametrize("drafter", [chain, tree])
def test_distributed_as_without_drafts(drafter: Drafter, samples: int) -> None:
    model = Model(1, PARAMS)
    seen, lengths = outcomes(model, drafter, samples)
    assert chi_square(seen, model.likelihoods(1)) > 1e-4
    assert min(lengths[1], lengths[2], lengths[3]) > samples / 200


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 3])
def test_what_follows_an_accepted_draft_is_distributed_as_without(first: int) -> None:
    """The draft always begins alike, so pairs that begin so are all seen."""
    model = Model(1, PARAMS)

    def drafter(number: int) -> Draft:
        other = np.random.default_rng(number).integers(0, VOCAB)
        return Draft(array("i", [first, int(other)]))

    seen = pairs(model, drafter, 10_000)
    both = {path: p for path, p in model.likelihoods(2).items() if path[0] == first}
    total = sum(both.values())
    assert chi_square(seen, {path: p / total for path, p in both.items()}) > 1e-4


@COUNTS
@pytest.mark.parametrize("wrong", [False, True])
def test_drafts_that_are_always_right_and_always_wrong(wrong: bool, samples: int) -> None:
    """Right: all tokens at once are candidates. Wrong: those that top-p leaves out are."""
    model = Model(3, PARAMS, spread=3.0)
    weights = model.weights([])
    never = [token for token, weight in enumerate(weights) if not weight]
    assert len(never) >= 2
    tokens = never if wrong else list(range(VOCAB))
    draft = draft_tree(array("i", tokens), array("i", [-1] * len(tokens)))
    seen, lengths = outcomes(model, lambda _: draft, samples)
    assert lengths == {1 if wrong else 2: samples}
    assert chi_square(seen, model.likelihoods(1)) > 1e-4


def test_typical_acceptance_is_another_distribution() -> None:
    """And the test would see it."""
    model = Model(1, PARAMS)
    favoured = int(np.argmin(np.where(np.array(model.weights([])), model.weights([]), 2**62)))
    plain = msgspec.structs.replace(
        PARAMS, top_p=1.0, repetition_penalty=1.0, frequency_penalty=0.0
    )
    assert Typical(1e-9, 1e-9).applies_to(plain)
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(0, 2000, _TOGETHER):
        sampler = NumpySampler()
        samples = [sequence(n, sampler) for n in range(first, first + _TOGETHER)]
        for each in samples:
            each.params = plain
        drafts = [Draft(array("i", [favoured]))] * len(samples)
        logits = model.logits[[PROMPT[-1], favoured] * len(samples)]
        result = StepResult(logits, logits.argmax(axis=1).astype(np.int32))
        step = step_of(samples, drafts)
        for tokens in verify(sampler, result, step, typical=Typical(1e-9, 1e-9)).tokens:
            seen[(tokens[0],)] += 1
    assert seen == {(favoured,): 2000}
