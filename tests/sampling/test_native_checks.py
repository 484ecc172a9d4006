"""What the native sampler is made of: numbers that no choice can be made with are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.native_sampler import bare_executor

from penstock.backends.cpu import native

OPTIONS: dict[str, Any] = {
    "vocabulary": 3,
    "key": 7,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repeat_last_n": None,
    "min_tokens": 0,
    "logprobs": None,
    "constrained": False,
    "logit_bias": [],
    "ending": [],
    "prompt": [],
}


@pytest.fixture(scope="module")
def module() -> Any:
    return native.load()


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": -1.0},
        {"top_p": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.5},  # leaves no token, not even the likeliest
        {"vocabulary": 0},
        {"vocabulary": -1},
        {"vocabulary": 2**22 + 1},
        {"logit_bias": [(3, 1.0)]},
        {"ending": [-1]},
        {"prompt": [3], "repetition_penalty": 2.0},
        {"repeat_last_n": -2},
    ],
    ids=str,
)
def test_options_that_make_no_weights(module: Any, changes: dict[str, Any]) -> None:
    module.SampleState(**OPTIONS)
    with pytest.raises(ValueError, match=r"."):
        module.SampleState(**(OPTIONS | changes))


@pytest.mark.parametrize("columns", [0, -1, 2**22 + 1, 2**62])
def test_logits_have_columns_whose_weights_can_be_summed(module: Any, columns: int) -> None:
    with pytest.raises(ValueError, match="columns"):
        module.Sampler(bare_executor(module, 8), columns)


@pytest.mark.parametrize("top_k", [0, 1, 5, 2**62, -(2**62)])
@pytest.mark.parametrize("top_p", [1.0, 0.5, 5e-324])
@pytest.mark.parametrize("min_p", [0.0, 1.0])
def test_a_vocabulary_of_one(module: Any, top_k: int, top_p: float, min_p: float) -> None:
    sampler = module.Sampler(bare_executor(module, 1), 1)
    for temperature in (0.0, 5e-324, 1.0, 1e300):
        options = {"vocabulary": 1, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        state = module.SampleState(**(OPTIONS | options | {"temperature": temperature}))
        logits = np.array([[-3.0], [3e38]], np.float32)
        assert sampler.choose(logits, [1, 0], [state, state]) == ([0, 0], [0, 0])
    for count in (-1, 0, 1, 2**31 - 1):
        (entry,) = sampler.report(logits, [1], [0], [count])
        assert entry[4] == [0] * min(max(count, 0), 1)


def test_rows_and_states_lie_in_the_logits(module: Any) -> None:
    sampler = module.Sampler(bare_executor(module, 3), 3)
    state, logits = module.SampleState(**OPTIONS), np.zeros((2, 3), np.float32)
    other = module.SampleState(**(OPTIONS | {"vocabulary": 2}))
    mask = np.zeros(1, np.uint32)
    assert sampler.choose(logits, [], []) == ([], [])
    for rows, states, masks in (
        ([2], [state], None),
        ([-1], [state], None),
        ([2**62], [state], None),
        ([0], [], None),
        ([0], [other], None),
        ([0], [state], []),
        ([0], [state], [np.zeros(2, np.uint32)]),
        ([0, 1], [state, state], [mask]),
    ):
        with pytest.raises(ValueError, match=r"."):
            sampler.choose(logits, rows, states, masks)
    with pytest.raises(ValueError, match="columns"):
        sampler.choose(np.zeros((2, 4), np.float32), [0], [state])
    for tokens, counts in (([3], [0]), ([-1], [0]), ([0], []), ([], [0])):
        with pytest.raises(ValueError, match=r"."):
            sampler.report(logits, [0], tokens, counts)
