"""Rows that samplers choose from, for comparisons of one sampler with another."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.interface.mask import TokenMask
from penstock.interface.sampler import NewSequence, Sampled, Sampler
from penstock.interface.step import StepResult
from penstock.sampling.draws import sequence_key
from penstock.sampling.params import SamplingParams

EOS = 0


def result_of(logits: np.ndarray) -> StepResult:
    logits = np.ascontiguousarray(logits, np.float32)
    return StepResult(logits, logits.argmax(axis=1).astype(np.int32))


def states_of(
    sampler: Sampler[Any], params: list[SamplingParams], vocab: int, prompt: list[int]
) -> list[Any]:
    return [
        sampler.state(NewSequence(each, sequence_key(i, 0), prompt, vocab, [EOS]))
        for i, each in enumerate(params)
    ]


def run(
    sampler: Sampler[Any],
    logits: np.ndarray,
    params: list[SamplingParams],
    prompt: list[int],
    output: list[int],
    allowed: list[TokenMask | None] | None = None,
) -> Sampled:
    states = states_of(sampler, params, logits.shape[1], prompt)
    for state in states:
        for token in output:
            state.append(token)
    return sampler.sample(result_of(logits), list(range(len(params))), states, allowed)


def assert_equal(found: Sampled, expected: Sampled) -> None:
    assert found.errors == expected.errors
    assert found.logprobs == expected.logprobs
    for i, token in enumerate(expected.token_ids):
        assert i in expected.errors or found.token_ids[i] == token, i


EVERY_KIND = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=5),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9, logprobs=2),
    SamplingParams(top_k=40),
    SamplingParams(top_k=20, top_p=0.5, min_p=0.02),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=-0.5),
    SamplingParams(temperature=0.0, min_tokens=3, logit_bias={4: 3.0, 9: -100.0}),
    SamplingParams(min_tokens=2, stop_token_ids=(3, 60), top_p=0.8),
    SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0),
    SamplingParams(temperature=1.5, presence_penalty=2.0, top_k=5, logprobs=0),
    SamplingParams(temperature=0.0, repetition_penalty=1.8, frequency_penalty=1.0, repeat_last_n=3),
]
