"""The sampler: options against a plain definition, independence of rows, errors, logprobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.native_sampler import native_sampler
from support.needs import native_module
from support.samplers import EVERY_KIND, result_of

from penstock.backends.cpu import native
from penstock.errors import RequestError
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.sampler import NewSequence, Sampler
from penstock.interface.step import StepResult
from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler
from penstock.sampling.sequence import SequenceSampler

VOCAB = 1000
EOS = 7


class Outcome(NamedTuple):
    token_id: int
    logprobs: TokenLogprobs | None
    error: str | None


class Chooser:
    """A sampler of one kind, and what tests ask of it."""

    def __init__(self, make: Callable[[int], Sampler[Any]]) -> None:
        self.make = make
        self.sampler = make(VOCAB)

    def state(
        self, params: SamplingParams, seed: int = 1, prompt: list[int] | None = None, index: int = 0
    ) -> Any:
        key = sequence_key(seed, index)
        return self.sampler.state(NewSequence(params, key, prompt or [1, 2, 3], VOCAB, [EOS]))

    def all(
        self, logits: np.ndarray | StepResult, states: list[Any], rows: list[int] | None = None
    ) -> list[Outcome]:
        result = logits if isinstance(logits, StepResult) else result_of(logits)
        sampled = self.sampler.sample(result, rows or list(range(len(states))), states)
        return [
            Outcome(token, sampled.logprobs.get(i), sampled.errors.get(i))
            for i, token in enumerate(sampled.token_ids)
        ]

    def one(self, logits: np.ndarray, state: Any) -> Outcome:
        return self.all(logits[None], [state])[0]


@pytest.fixture(params=["numpy", *native.runnable()], scope="module")
def chooser(request: pytest.FixtureRequest) -> Chooser:
    """NumPy's definition, and the native kernels of every instruction set that runs here."""
    if request.param == "numpy":
        return Chooser(lambda vocab: NumpySampler())
    module = native_module(request.param)
    return Chooser(lambda vocab: native_sampler(module, vocab))


def random_logits(rows: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, VOCAB)) * scale).astype(np.float32)


def test_a_row_alone_equals_the_row_among_others(chooser: Chooser) -> None:
    logits = random_logits(64)
    states = [chooser.state(EVERY_KIND[i % len(EVERY_KIND)], seed=i) for i in range(64)]
    for i, state in enumerate(states):
        for token in range(i):
            state.append(token)
    together = chooser.all(logits, states)
    reverse = chooser.all(logits, states[::-1], list(range(64))[::-1])[::-1]
    assert reverse == together
    for i, state in enumerate(states):
        assert chooser.one(logits[i], state) == together[i]


def test_sampling_does_not_write_to_the_logits(chooser: Chooser) -> None:
    logits = random_logits(len(EVERY_KIND))
    result = result_of(logits.copy())
    chooser.all(result, [chooser.state(p) for p in EVERY_KIND])
    assert np.array_equal(result.logits, logits)


def test_same_seed_same_text_and_each_sequence_its_own(chooser: Chooser) -> None:
    steps = random_logits(30, scale=0.5)

    def text(seed: int, index: int) -> list[int]:
        state, tokens = chooser.state(SamplingParams(), seed, index=index), []
        for logits in steps:
            tokens.append(chooser.one(logits, state).token_id)
            state.append(tokens[-1])
        return tokens

    assert text(5, 0) == text(5, 0)
    assert len({tuple(text(seed, index)) for seed in (5, 6) for index in range(4)}) == 8


def test_state_is_rebuilt_from_prompt_and_output_after_preemption(chooser: Chooser) -> None:
    params = SamplingParams(repetition_penalty=1.2, frequency_penalty=0.3, min_tokens=5)
    steps = random_logits(40, scale=1.0)
    state, tokens = chooser.state(params, 3), []
    for i, logits in enumerate(steps):
        rebuilt = chooser.state(params, 3)
        for token in tokens:
            rebuilt.append(token)
        assert rebuilt.num_output == state.num_output == i
        chosen = chooser.one(logits, state)
        assert chooser.one(logits, rebuilt) == chosen
        state.append(chosen.token_id)
        tokens.append(chosen.token_id)


def test_several_sequences_may_share_a_row(chooser: Chooser) -> None:
    logits = random_logits(1, scale=0.1)
    states = [chooser.state(SamplingParams(n=50), index=i) for i in range(50)]
    tokens = chooser.all(logits, states, [0] * 50)
    assert len({t.token_id for t in tokens}) > 25


def test_greedy_takes_the_executor_argmax(chooser: Chooser) -> None:
    logits = random_logits(1)
    result = StepResult(logits, np.array([123], np.int32))
    plain = chooser.all(result, [chooser.state(SamplingParams(temperature=0.0))])
    assert plain == [Outcome(123, None, None)]


def test_processors_against_their_definition(chooser: Chooser) -> None:
    rng = np.random.default_rng(2)
    for trial in range(40):
        logits = random_logits(1, seed=trial)[0]
        prompt = rng.integers(0, VOCAB, 30).tolist()
        output = rng.integers(0, 50, rng.integers(0, 40)).tolist()
        params = SamplingParams(
            temperature=0.0,
            repetition_penalty=float(rng.uniform(0.5, 2)),
            frequency_penalty=float(rng.uniform(-2, 2)),
            presence_penalty=float(rng.uniform(-2, 2)),
            logit_bias={int(t): float(rng.uniform(-5, 5)) for t in rng.integers(0, VOCAB, 5)},
            min_tokens=20,
            stop_token_ids=(11, 12),
        )
        definition = SequenceSampler(NewSequence(params, 0, prompt, VOCAB, [EOS]))
        state = chooser.sampler.state(NewSequence(params, 0, prompt, VOCAB, [EOS]))
        for token in output:
            definition.append(token)
            state.append(token)
        expected = logits.astype(np.float64)
        for token, bias in (params.logit_bias or {}).items():
            expected[token] += bias
        if len(output) < 20:
            expected[[EOS, 11, 12]] = -np.inf
        for token in set(prompt) | set(output):
            rp = params.repetition_penalty
            expected[token] = expected[token] / rp if expected[token] > 0 else expected[token] * rp
        for token in set(output):
            expected[token] -= params.frequency_penalty * output.count(token)
            expected[token] -= params.presence_penalty
        got = logits.copy()
        definition.apply(got)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        assert chooser.one(logits, state).token_id == int(got.argmax())


@pytest.mark.parametrize("last", [-1, 0, 1, 2, 5, 25, 1000])
def test_penalties_may_look_at_the_last_tokens_alone(chooser: Chooser, last: int) -> None:
    """As llama.cpp's do: all three count among the same tokens of prompt and output."""
    rng = np.random.default_rng(3)
    prompt = rng.integers(0, 12, 20).tolist()
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=0.5,
        repeat_last_n=last,
    )
    new = NewSequence(params, 0, prompt, VOCAB, [EOS])
    definition, state = SequenceSampler(new), chooser.sampler.state(new)
    tokens = list(prompt)
    for step in range(30):
        logits = random_logits(1, seed=step)[0]
        logits[:12] += 6.0
        expected = logits.copy()
        recent = tokens if last < 0 else tokens[len(tokens) - min(last, len(tokens)) :]
        for token in set(recent):
            value = expected[token]
            value = value / np.float32(1.5) if value > 0 else value * np.float32(1.5)
            expected[token] = value - np.float32(0.25 * recent.count(token) + 0.5)
        got = logits.copy()
        definition.apply(got)
        assert np.array_equal(got, expected)
        chosen = chooser.one(logits, state).token_id
        assert chosen == int(expected.argmax())
        tokens.append(chosen)
        definition.append(chosen)
        state.append(chosen)
    assert state.greedy == (last == 0)


@pytest.mark.parametrize(("last", "expected"), [(None, 1), (0, 1), (1, 1), (2, 3), (-1, 4)])
@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_one_penalty_alone_looks_at_the_last_tokens(
    chooser: Chooser, penalty: str, last: int | None, expected: int
) -> None:
    """Those of presence and frequency then see the prompt, which they do not without a number."""
    logits = np.zeros(VOCAB, np.float32)
    logits[[1, 2, 3, 4]] = 4.0, 3.5, 2.9, 2.5
    params = SamplingParams(temperature=0.0, repeat_last_n=last, **{penalty: 2.0})  # type: ignore[arg-type]
    state = chooser.state(params, prompt=[3, 1, 2])
    assert chooser.one(logits, state).token_id == expected


def test_min_tokens_masks_ends_until_reached(chooser: Chooser) -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[[EOS, 30]] = 50, 40
    logits[31] = 10
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(30,))
    state = chooser.state(params)
    for expected in (31, 31, EOS, EOS):
        assert chooser.one(logits, state).token_id == expected
        state.append(expected)
    ignoring = chooser.state(SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True))
    assert chooser.one(logits, ignoring).token_id == EOS


@pytest.mark.slow
def test_sampled_frequencies_follow_softmax(chooser: Chooser) -> None:
    logits = random_logits(1, scale=1.5)[0][:40]
    params = SamplingParams(temperature=0.7)
    sampler = chooser.make(40)
    state = sampler.state(NewSequence(params, 11, [0], 40))
    result = result_of(logits[None])
    counts = np.zeros(40)
    for _ in range(20000):
        counts[sampler.sample(result, [0], [state]).token_ids[0]] += 1
        state.append(0)
    shares = np.exp(logits.astype(np.float64) / 0.7)
    shares = 20000 * shares / shares.sum()
    large = shares > 5
    chi_square = float(((counts - shares)[large] ** 2 / shares[large]).sum())
    degrees = int(large.sum())
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_tiny_temperature_is_the_argmax(chooser: Chooser) -> None:
    logits = random_logits(1)[0]
    for temperature in (1e-6, 1e-40, 1e-300):
        chosen = chooser.one(logits, chooser.state(SamplingParams(temperature=temperature)))
        assert chosen.token_id == int(logits.argmax())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", EVERY_KIND)
def test_a_row_without_finite_logits_fails_alone(
    chooser: Chooser, params: SamplingParams, bad: float
) -> None:
    logits = random_logits(3)
    logits[1] = bad
    states = [chooser.state(params) for _ in range(3)]
    first, broken, last = chooser.all(logits, states)
    assert broken.error is not None
    assert "logits" in broken.error
    assert broken.logprobs is None
    assert first.error is None
    assert last.error is None
    assert first == chooser.all(random_logits(3), states)[0]


def test_one_nan_is_found_wherever_it_is(chooser: Chooser) -> None:
    logits = random_logits(1)[0]
    logits[500] = np.nan
    for params in EVERY_KIND:
        sampled = chooser.one(logits, chooser.state(params))
        assert sampled.error is not None
        assert "NaN" in sampled.error
    skipped = StepResult(logits[None], np.array([3], np.int32))  # an arg max that is no NaN
    for params in EVERY_KIND[2:]:
        (sampled,) = chooser.all(skipped, [chooser.state(params)])
        assert sampled.error is not None
        assert "NaN" in sampled.error


def test_no_token_left_is_blamed_on_the_options(chooser: Chooser) -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[EOS] = 1.0
    sampled = chooser.one(logits, chooser.state(SamplingParams(min_tokens=1)))
    assert sampled.error is not None
    assert "min_tokens" in sampled.error


def test_tokens_outside_the_vocabulary_are_refused(chooser: Chooser) -> None:
    with pytest.raises(RequestError, match="outside the vocabulary"):
        chooser.state(SamplingParams(logit_bias={VOCAB: 1.0}))
    with pytest.raises(RequestError, match="outside the vocabulary"):
        chooser.state(SamplingParams(repetition_penalty=1.1), prompt=[VOCAB])
    with pytest.raises(RequestError, match="outside the vocabulary"):
        chooser.state(SamplingParams(stop_token_ids=(VOCAB,), min_tokens=1))


def test_logprobs_are_the_log_softmax_of_the_raw_logits(chooser: Chooser) -> None:
    logits = random_logits(1)[0]
    logits[100] = logits[200] = logits.max() + 1  # a tie for the first rank
    exact = logits.astype(np.float64)
    exact = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    params = SamplingParams(temperature=0.3, logprobs=4, logit_bias={5: 100.0})
    sampled = chooser.one(logits, chooser.state(params))
    assert sampled.token_id == 5
    report = sampled.logprobs
    assert report is not None
    assert report.token_id == 5
    assert report.logprob == pytest.approx(exact[5], abs=1e-6)
    order = sorted(range(VOCAB), key=lambda i: (-float(logits[i]), i))
    assert report.rank == order.index(5) + 1
    assert [token for token, _ in report.top] == order[:4]
    assert [v for _, v in report.top] == pytest.approx(exact[order[:4]].tolist(), abs=1e-6)
    assert chooser.one(logits, chooser.state(SamplingParams(temperature=0.0, logprobs=0))).logprobs


def test_rank_agrees_with_the_order_of_the_top_list(chooser: Chooser) -> None:
    logits = np.round(random_logits(1)[0])
    targets = list(range(0, VOCAB, 97))
    reports = chooser.sampler.prompt_logprobs(np.tile(logits, (len(targets), 1)), targets, 20)
    order = sorted(range(VOCAB), key=lambda i: (-float(logits[i]), i))
    assert [r.rank for r in reports] == [order.index(t) + 1 for t in targets]
    for report in reports:
        for rank, (token, logprob) in enumerate(report.top, 1):
            if token == report.token_id:
                assert (rank, logprob) == (report.rank, report.logprob)


def test_prompt_logprobs_refuse_nan_and_mismatched_rows(chooser: Chooser) -> None:
    logits = random_logits(2)
    with pytest.raises(ValueError, match="2 rows"):
        chooser.sampler.prompt_logprobs(logits, [1], 0)
    logits[1, 3] = np.nan
    with pytest.raises(RequestError, match="NaN"):
        chooser.sampler.prompt_logprobs(logits, [1, 2], 0)


def test_masked_tokens_are_not_listed_among_the_likeliest(chooser: Chooser) -> None:
    logits = np.full((1, 10), -np.inf, np.float32)
    logits[0, :2] = 0.0
    (report,) = chooser.make(10).prompt_logprobs(logits, [0], 5)
    assert report.top == [(0, pytest.approx(-math.log(2))), (1, pytest.approx(-math.log(2)))]
