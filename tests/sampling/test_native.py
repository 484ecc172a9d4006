"""The native sampler against NumPy's definition: the same tokens, errors and floats, by ``==``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_sampler import bare_executor, native_sampler
from support.needs import needs_native
from support.samplers import assert_equal, result_of, run
from support.sampling_strategies import constrained, masks, options, rows

from penstock.backends.cpu import native
from penstock.backends.cpu.sampler import NativeSampler
from penstock.errors import ConfigError
from penstock.interface.mask import TokenMask, mask_of
from penstock.interface.sampler import NewSequence, Sampled
from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams
from penstock.sampling.reference import NumpySampler

THREADS = (1, 2, 3)


def variants() -> list[Any]:
    modules = []
    for isa in native.runnable():
        try:
            modules.append(native.load(isa))
        except ConfigError:
            continue  # the CPU has it, the system does not grant it
    return modules


MODULES = variants()
pytestmark = needs_native


def check(
    logits: np.ndarray,
    params: list[SamplingParams],
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    threads: int = 1,
    allowed: list[TokenMask | None] | None = None,
) -> Sampled:
    logits = np.ascontiguousarray(logits, np.float32)
    if allowed is not None:
        params = constrained(params, allowed)
    expected = run(NumpySampler(), logits, params, prompt or [], output or [], allowed)
    for module in MODULES:
        sampler = native_sampler(module, logits.shape[1], threads)
        found = run(sampler, logits, params, prompt or [], output or [], allowed)
        assert_equal(found, expected)
    return expected


VOCABS = st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 100, 1000, 4096, 5003])


@pytest.mark.slow
@given(data=st.data(), vocab=VOCABS, threads=st.sampled_from(THREADS))
@settings(max_examples=120, deadline=None)
def test_any_options_on_any_rows(data: st.DataObject, vocab: int, threads: int) -> None:
    count = data.draw(st.integers(1, 6))
    logits = data.draw(rows(vocab, count))
    params = [data.draw(options(vocab)) for _ in range(count)]
    tokens = st.lists(st.integers(0, vocab - 1), max_size=30)
    allowed = data.draw(masks(vocab, count))
    check(logits, params, data.draw(tokens), data.draw(tokens), threads, allowed)


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.9999])
def test_wide_rows(spread: float, top_p: float) -> None:
    """Past the steps that peaked rows stop at: whole rows of 2**17 that are flat, or nearly."""
    logits = np.random.default_rng(1).standard_normal((4, 1 << 17)) * spread
    params = [SamplingParams(top_p=top_p, top_k=k, logprobs=20) for k in (0, 0, 3000, 70000)]
    check(logits, params, threads=2)


def test_nuclei_that_end_among_the_smallest_weights() -> None:
    """Weights of 1, 2, 3, ... beside one of 2**40, the last of which top-p must tell apart."""
    logits = np.full((40, 3000), -27.8)
    logits[:, 1:] += np.random.default_rng(2).uniform(-0.5, 2.5, (40, 2999))
    logits[:, 0] = 0.0
    params = [SamplingParams(top_p=1 - i * 1e-10, seed=i) for i in range(1, 41)]
    check(logits, params)


def test_every_draw_of_a_small_row_agrees() -> None:
    """Many keys, so that draws fall near the borders between tokens too."""
    logits = np.random.default_rng(3).standard_normal((2000, 70)).astype(np.float32)
    check(logits, [SamplingParams(temperature=2.0)] * 1000 + [SamplingParams(top_k=7)] * 1000)


def test_several_sequences_of_one_prompt_read_one_row() -> None:
    logits = np.random.default_rng(4).standard_normal((1, 500)).astype(np.float32)
    params = SamplingParams(n=32, temperature=1.5, top_p=0.9, logprobs=2)
    found = []
    for sampler in (NumpySampler(), *(native_sampler(m, 500, 2) for m in MODULES)):
        states = [
            sampler.state(NewSequence(params, sequence_key(9, i), [1], 500)) for i in range(32)
        ]
        found.append(sampler.sample(result_of(logits), [0] * 32, states))
    assert all(each == found[0] for each in found)
    assert len(set(found[0].token_ids)) > 8


def test_a_greedy_row_with_a_grammar_is_the_largest_allowed() -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((40, 1003)).astype(np.float32)
    permitted = rng.random((40, 1003)) < 0.1
    found = check(
        logits,
        [SamplingParams(temperature=0)] * 40,
        allowed=[mask_of(each) for each in permitted],
    )
    assert found.token_ids == np.where(permitted, logits, -np.inf).argmax(axis=1).tolist()
    assert found.not_plain == list(range(40)), "their states are told"


def test_a_grammar_acts_after_bias_and_penalties_and_before_temperature() -> None:
    """Token 3 is allowed and far behind, whatever was done for or against others."""
    logits = np.array([[9.0, 8.0, 7.0, -50.0]], np.float32)
    mask = mask_of(np.array([False, False, False, True]))
    params = SamplingParams(
        logit_bias={0: 100.0, 3: -100.0}, top_k=1, top_p=0.01, min_p=1.0, logprobs=1, seed=1
    )
    found = check(logits, [params], output=[3], allowed=[mask])
    assert found.token_ids == [3]
    assert found.logprobs[0].rank == 4
    assert found.logprobs[0].top[0][0] == 0, "log-probabilities are of the logits as they were"
    none = check(logits, [params], allowed=[mask_of(np.zeros(4, np.bool_))])
    assert "grammar" in none.errors[0]


def test_what_no_row_can_be_is_refused() -> None:
    for module in MODULES:
        sampler = native_sampler(module, 20)
        state = sampler.state(NewSequence(SamplingParams(), 1, [], 20))
        logits = np.zeros((2, 20), np.float32)
        with pytest.raises(ValueError, match="outside the logits"):
            sampler.draw(logits, [2], [state])
        with pytest.raises(ValueError, match="other columns"):
            sampler.draw(np.zeros((2, 21), np.float32), [0], [state])
        with pytest.raises(ValueError, match="a mask has another vocabulary"):
            sampler.draw(logits, [0], [state], [np.zeros(2, np.uint32)])
        with pytest.raises(ValueError, match="one mask a row"):
            sampler.draw(logits, [0], [state], [])
        with pytest.raises(ValueError, match="outside the vocabulary"):
            sampler.token_logprobs(logits, [0], [20], [1])
        for token in (-1, 20):
            with pytest.raises(ValueError, match="outside the vocabulary"):
                state.append(token)
        other = native_sampler(module, 30).state(NewSequence(SamplingParams(), 1, [], 30))
        with pytest.raises(ValueError, match="a state has another vocabulary"):
            sampler.draw(logits, [0], [other])
        with pytest.raises(ValueError, match="one state a row"):
            sampler.draw(logits, [0, 1], [state])


def test_a_closed_executor_samples_no_more() -> None:
    for module in MODULES:
        executor = bare_executor(module, 20)
        sampler = NativeSampler(module, executor, 20)
        state = sampler.state(NewSequence(SamplingParams(), 1, [], 20))
        executor.close()
        with pytest.raises(RuntimeError, match="closed"):
            sampler.draw(np.zeros((1, 20), np.float32), [0], [state])
