"""What a model refuses of a request: one check for all callers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ContextLengthError, RequestError
from penstock.interface.messages import EngineRequest, RequestOptions, Tenant
from penstock.interface.request_checks import check_length, check_request
from penstock.interface.token_ids import check_token_ids, first_bad_token
from penstock.length_limits import LengthLimits
from penstock.pooling.params import PoolingParams
from penstock.sampling.params import SamplingParams

VOCAB, LONGEST, HIDDEN = 64, 16, 8


def check(prompt: Any, asked: SamplingParams | PoolingParams, priority: int = 0) -> None:
    request = EngineRequest.of("r", prompt, asked, RequestOptions(priority=priority))
    check_request(request, VOCAB, LengthLimits(LONGEST), HIDDEN)


def test_a_request_is_for_text_or_for_an_embedding() -> None:
    options = RequestOptions(priority=3, cache_salt="s", tenant=Tenant("t"))
    text = EngineRequest.of("r", [1], SamplingParams(n=2), options)
    assert (text.params.n, text.pooling) == (2, None)
    assert (text.priority, text.cache_salt, text.tenant) == (3, "s", Tenant("t"))
    pooled = EngineRequest.of("r", [1], PoolingParams(pooling="mean"), options)
    assert pooled.pooling == PoolingParams(pooling="mean")


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ([0, 63], SamplingParams(max_tokens=14)),
        ([1] * 15, SamplingParams(max_tokens=None)),
        ([1] * 16, PoolingParams(dimensions=HIDDEN)),
    ],
)
def test_what_fits_passes(prompt: list[int], asked: SamplingParams | PoolingParams) -> None:
    check(prompt, asked)


@pytest.mark.parametrize(
    ("prompt", "asked", "param", "words"),
    [
        ([], SamplingParams(), "prompt", "the prompt is empty; give it at least one token"),
        ([], PoolingParams(), "prompt", "the prompt is empty"),
        ([1, 64], SamplingParams(), "prompt", "token id 64, outside the vocabulary of 64: token"),
        ([1, -1], PoolingParams(), "prompt", "token id -1,.* integers from 0 to 63"),
        ([1, True], SamplingParams(), "prompt", "token id True"),
        ([1, None], SamplingParams(), "prompt", "token id None"),
        ([1, 10**5000], SamplingParams(), "prompt", "token id this int"),
        ([1], SamplingParams(top_p=2.0), "top_p", "top_p must be in"),
        ([1], SamplingParams(logit_bias={64: 1.0}), "logit_bias", "logit_bias holds token id 64"),
        ([1], SamplingParams(stop_token_ids=(99,)), "stop_token_ids", "holds token id 99"),
        ([1], PoolingParams(dimensions=10**5000), "dimensions", "dimensions is this int, and"),
        ([1], PoolingParams(dimensions=HIDDEN + 1), "dimensions", "embeddings have 8"),
    ],
)
def test_what_no_model_serves_is_refused_by_its_field(
    prompt: Any, asked: SamplingParams | PoolingParams, param: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        check(prompt, asked)
    assert caught.value.param == param


@pytest.mark.parametrize("priority", [2**63, -(2**63) - 1])
def test_a_priority_that_no_message_holds_is_refused(priority: int) -> None:
    with pytest.raises(RequestError, match="priority must fit in 64 bits"):
        check([1], SamplingParams(), priority)


@pytest.mark.parametrize(
    ("length", "asked", "param", "words"),
    [
        (16, SamplingParams(), "prompt", "holds 16, prompt.* at least 1 tokens shorter"),
        (20, SamplingParams(), "prompt", "at least 5 tokens shorter"),
        (17, None, "prompt", "the prompt has 17 tokens, and the context .* holds 16; shorten"),
        (3, SamplingParams(max_tokens=14), "max_tokens", "17, .* to at most 13, leave it out or"),
        (3, SamplingParams(max_tokens=None, min_tokens=14), "min_tokens", "to at most 13 or"),
    ],
)
def test_what_does_not_fit_the_context_is_reported_by_how_much(
    length: int, asked: SamplingParams | None, param: str, words: str
) -> None:
    with pytest.raises(ContextLengthError, match=words) as caught:
        check_length(length, asked, LengthLimits(LONGEST))
    assert caught.value.param == param


def test_a_field_is_called_as_the_client_does() -> None:
    with pytest.raises(RequestError, match=r"^input\[3\] has 17 tokens") as caught:
        check_length(17, None, LengthLimits(LONGEST), "input[3]")
    assert caught.value.param == "input[3]"
    with pytest.raises(RequestError, match=r"^input\[3\] holds token id 64"):
        check_token_ids([1, 64], VOCAB, "input[3]")


@given(st.lists(st.one_of(st.integers(-2, 66), st.booleans(), st.floats(), st.none()), max_size=9))
def test_the_first_bad_token_is_found(tokens: list[Any]) -> None:
    good = [type(t) is int and 0 <= t < VOCAB for t in tokens]
    assert first_bad_token(tokens, VOCAB) == (None if all(good) else good.index(False))
