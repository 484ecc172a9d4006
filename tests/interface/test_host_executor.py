"""A step and its draws, as every executor that computes on the host carries them out."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from support.tiny_plans import Chunk, step_of

from penstock.interface.executor import Capabilities, PromptRows, Sampling, run
from penstock.interface.host_executor import HostExecutor
from penstock.interface.mask import StepMasks, mask_of
from penstock.interface.sampler import NewSequence
from penstock.interface.step import StepInput, StepResult
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler

VOCAB = 40
TOKENS = np.arange(6, dtype=np.int32)
STEP = step_of([Chunk(TOKENS, 0, 6, [1], rows=range(4), hidden=[4, 5])])


class Fixed(HostExecutor):
    """Says the same after every step."""

    num_blocks = 4

    def __init__(self, taps: bool = False) -> None:
        rng = np.random.default_rng(5)
        self.logits = rng.standard_normal((4, VOCAB), np.float32)
        self.hidden = rng.standard_normal((6, 3), np.float32)
        self.taps = rng.standard_normal((6, 9), np.float32) if taps else None
        self.steps = 0

    def run(self, step: StepInput) -> StepResult:
        self.steps += 1
        argmax = self.logits.argmax(axis=1).astype(np.int32)
        return StepResult(self.logits, argmax, self.hidden, self.taps)

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None: ...


class Masks(NamedTuple):
    executor: Fixed
    taken: StepMasks

    def take(self) -> StepMasks:
        assert self.executor.steps == 1, "they are computed while the step runs"
        return self.taken


def states(params: list[SamplingParams]) -> list[Any]:
    sequences = [NewSequence(each, 7 + i, [1], VOCAB) for i, each in enumerate(params)]
    return [NumpySampler().state(each) for each in sequences]


PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.0, seed=1, logprobs=2),
    SamplingParams(temperature=0.7, seed=2, repetition_penalty=1.5),
    SamplingParams(temperature=0, logprobs=1),
]


def test_it_draws_what_its_sampler_draws_and_tells_the_states() -> None:
    executor = Fixed()
    assert executor.capabilities == Capabilities(late_masks=True)
    seen = states(PARAMS)
    outcome = executor.submit(STEP, Sampling([0, 1, 1, 3], seen)).wait()
    expected = NumpySampler().sample(executor.run(STEP), [0, 1, 1, 3], states(PARAMS))
    assert outcome.sampled == expected
    assert outcome.late == frozenset()
    # The second draws of both depend on the first.
    again = executor.submit(STEP, Sampling([0, 1, 1, 3], seen)).wait().sampled
    other = states(PARAMS)
    for state, token in zip(other, expected.token_ids, strict=True):
        state.append(token)
    assert again == NumpySampler().sample(executor.run(STEP), [0, 1, 1, 3], other)


def test_who_is_late_draws_nothing_and_delays_nobody() -> None:
    executor = Fixed()
    seen = states(PARAMS)
    only_seven = mask_of(np.arange(VOCAB) == 7)
    taken = StepMasks([None, only_seven, None, None], frozenset([0, 2]))
    masks = Masks(executor, taken)
    outcome = executor.submit(STEP, Sampling([0, 1, 2, 3], seen, masks)).wait()
    assert outcome.late == {0, 2}
    assert outcome.sampled.token_ids[3] == executor.logits[3].argmax()
    assert sorted(outcome.sampled.logprobs) == [1, 3]
    assert outcome.sampled.logprobs[1].token_id == outcome.sampled.token_ids[1]
    untold = NumpySampler().sample(executor.run(STEP), [2], states(PARAMS)[2:3])
    assert NumpySampler().sample(executor.run(STEP), [2], seen[2:3]).token_ids == untold.token_ids


def test_a_row_that_is_not_finite_fails_alone_beside_one_that_is_late() -> None:
    executor = Fixed()
    executor.logits[3, 5] = np.nan
    taken = StepMasks([None] * 4, frozenset([1]))
    sampling = Sampling([0, 1, 2, 3], states(PARAMS), Masks(executor, taken))
    outcome = executor.submit(STEP, sampling).wait()
    assert sorted(outcome.sampled.errors) == [3]
    assert "NaN" in outcome.sampled.errors[3]


def test_prompts_are_reported_or_say_why_not() -> None:
    executor = Fixed()
    executor.logits[2, 0] = np.inf
    prompts = [PromptRows(0, [3, 4], 1), PromptRows(1, [5, 6], 0)]
    good, bad = executor.submit(STEP, Sampling(prompts=prompts)).wait().prompts
    assert [entry.token_id for entry in good] == [3, 4]  # type: ignore[union-attr]
    assert isinstance(bad, str)
    assert "infinite" in bad


def test_features_are_taps_or_else_hidden_states() -> None:
    plain, tapped = Fixed(), Fixed(taps=True)
    outcome = plain.submit(STEP, Sampling(features=True)).wait()
    np.testing.assert_array_equal(outcome.features, plain.hidden)
    assert outcome.result is None
    assert tapped.submit(STEP, Sampling(features=True)).wait().features.base is tapped.taps
    outcome = tapped.submit(STEP, Sampling()).wait()
    assert outcome.features is None
    np.testing.assert_array_equal(outcome.hidden, tapped.hidden[4:])


def test_logits_are_reported_where_they_are_asked_for() -> None:
    executor = Fixed()
    asked = executor.submit(STEP, Sampling(logits=True)).wait()
    assert asked.result is not None
    assert asked.result.logits is executor.logits
    assert asked.sampled.token_ids == []
    assert run(executor, STEP).logits is executor.logits
