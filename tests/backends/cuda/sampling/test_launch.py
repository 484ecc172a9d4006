"""Launches of the sampler of GPUs: queued, beside each other, and what they keep and refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.errors import RequestError
from penstock.interface.sampler import Sampled
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler

torch = pytest.importorskip("torch", reason="the GPU backend needs torch")
pytest.importorskip("triton", reason="the GPU backend needs Triton")

from support.cuda_sampler import device, device_sampler, queue  # noqa: E402
from support.samplers import EVERY_KIND, assert_equal, result_of, run, states_of  # noqa: E402

from penstock.backends.cuda.sampling.memory import Sizes  # noqa: E402

# The interpreter computes in NumPy, which warns of what options are meant to bring about.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|divide|invalid value):RuntimeWarning")


@pytest.mark.slow
def test_steps_queued_before_the_last_is_known() -> None:
    """Penalties, minimum length and draws go on from tokens that the host has not seen."""
    vocab, steps = 130, 5
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((steps, len(EVERY_KIND), vocab)).astype(np.float32)
    definition, sampler = NumpySampler(), device_sampler(vocab)
    expected_states = states_of(definition, EVERY_KIND, vocab, [1, 2, 2])
    states = states_of(sampler, EVERY_KIND, vocab, [1, 2, 2])
    rows = list(range(len(EVERY_KIND)))
    found, waiting = [], []
    for step in range(steps):
        waiting.append(queue(sampler, logits[step], states))
        if step:
            found.append(waiting[step - 1].wait())
    found.append(waiting[-1].wait())
    for step in range(steps):
        expected = definition.sample(result_of(logits[step]), rows, expected_states)
        assert_equal(found[step], expected)
        assert not found[step].not_plain
        for state, token in zip(expected_states, expected.token_ids, strict=True):
            state.append(token)
    assert {state.num_output for state in states} == {steps}


def test_tokens_stay_on_the_device_until_two_launches_later() -> None:
    sampler = device_sampler(20)
    states = states_of(sampler, [SamplingParams(temperature=0.0), SamplingParams()], 20, [])
    first = queue(sampler, np.eye(2, 20) * 50, states)
    second = queue(sampler, np.eye(2, 20, 3) * 50, states)
    assert first.token_ids.tolist() == first.wait().token_ids == [0, 1]
    assert second.token_ids.tolist() == [3, 4]
    assert second.errors.tolist() == [0, 0]
    queue(sampler, np.zeros((2, 20)), states)
    queue(sampler, np.zeros((2, 20)), states)
    assert first.wait().token_ids == [0, 1]
    with pytest.raises(RuntimeError, match="within 2 launches"):
        second.wait()


@pytest.mark.slow
def test_a_row_alone_equals_the_row_among_others() -> None:
    params = EVERY_KIND
    logits = np.random.default_rng(5).standard_normal((len(params), 130)).astype(np.float32) * 3
    sampler = device_sampler(130, rows=6)

    def states() -> list[Any]:
        made = states_of(sampler, params, 130, [7, 8])
        for state in made:
            state.append(9)
        return made

    order = list(range(len(EVERY_KIND)))
    together = sampler.sample(result_of(logits), order, states())
    reverse = sampler.sample(result_of(logits), order[::-1], states()[::-1])
    assert reverse.token_ids[::-1] == together.token_ids
    for i, state in enumerate(states()):
        alone = sampler.sample(result_of(logits[i : i + 1]), [0], [state])
        assert alone.token_ids == together.token_ids[i : i + 1]
        assert alone.logprobs.get(0) == together.logprobs.get(i)


def test_sequences_of_one_prompt_read_one_row_and_leave_it() -> None:
    logits = np.random.default_rng(6).standard_normal((1, 65)).astype(np.float32)
    params = [SamplingParams(temperature=1.5, logit_bias={64: 2.0}, top_p=0.9)] * 12
    found = []
    for sampler in (NumpySampler(), device_sampler(65)):
        result = result_of(logits.copy())
        states = states_of(sampler, params, 65, [1])
        found.append(sampler.sample(result, [0] * 12, states))
        assert np.array_equal(result.logits, logits)
    assert found[0] == found[1]
    assert len(set(found[0].token_ids)) > 4


def test_rows_that_are_not_aligned() -> None:
    wide = np.random.default_rng(9).standard_normal((len(EVERY_KIND), 131)).astype(np.float32)
    logits = torch.from_numpy(wide).to(device())[:, 1:]
    sampler, definition = device_sampler(130), NumpySampler()
    rows = list(range(len(EVERY_KIND)))
    argmax = logits.argmax(dim=1).to(torch.int32)
    found = sampler.launch(logits, argmax, rows, states_of(sampler, EVERY_KIND, 130, [1])).wait()
    states = states_of(definition, EVERY_KIND, 130, [1])
    assert_equal(found, definition.sample(result_of(wide[:, 1:]), rows, states))


def test_what_no_row_can_be_is_refused() -> None:
    sampler = device_sampler(20, rows=2)
    state, other = states_of(sampler, [SamplingParams()] * 2, 20, [])
    logits = np.zeros((2, 20), np.float32)
    with pytest.raises(ValueError, match="outside the logits"):
        sampler.draw(logits, [2], [state])
    with pytest.raises(ValueError, match="another vocabulary"):
        sampler.draw(np.zeros((2, 21), np.float32), [0], [state])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        sampler.token_logprobs(logits, [0], [20], [1])
    with pytest.raises(ValueError, match="at most 20"):
        sampler.token_logprobs(logits, [0], [1], [21])
    with pytest.raises(ValueError, match="state has another vocabulary"):
        sampler.draw(logits, [0], states_of(sampler, [SamplingParams()], 30, []))
    with pytest.raises(ValueError, match="one state a row"):
        sampler.draw(logits, [0, 1], [state])
    with pytest.raises(ValueError, match="advance by one"):
        queue(sampler, logits, [state, state])
    with pytest.raises(ValueError, match="at most 2 in a launch"):
        queue(sampler, np.zeros((3, 20)), [state, other, other])
    for token in (-1, 20):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            state.append(token)
    with pytest.raises(RequestError, match="outside the vocabulary"):
        states_of(sampler, [SamplingParams(repetition_penalty=1.1)], 20, [20])


def test_a_sequence_takes_device_memory_from_its_first_launch_on() -> None:
    sampler = device_sampler(20)
    plain, penalized = states_of(
        sampler, [SamplingParams(), SamplingParams(presence_penalty=1.0)], 20, []
    )
    assert penalized.counts is None
    tokens = queue(sampler, np.zeros((2, 20)), [plain, penalized]).wait().token_ids
    assert plain.counts is None
    assert penalized.counts.tolist() == [2 * (token == tokens[1]) for token in range(20)]


def test_warming_up_leaves_nothing_behind() -> None:
    logits = np.random.default_rng(13).standard_normal((3, 65)).astype(np.float32)
    params = [SamplingParams(), SamplingParams(top_k=3), SamplingParams(repetition_penalty=2.0)]
    cold, warm = device_sampler(65), device_sampler(65)
    warm.warm_up()
    assert run(warm, logits, params, [1], [2]) == run(cold, logits, params, [1], [2])


def test_a_step_may_choose_nothing() -> None:
    assert queue(device_sampler(20), np.zeros((1, 20)), []).wait() == Sampled([])


def test_memory_is_known_before_it_is_taken() -> None:
    sizes = Sizes(vocab=128_256, rows=256, batch=64, chunk=4096)
    assert sizes.bytes == pytest.approx(4 * 64 * 128_256 * 4, rel=0.05)
