"""What a user may write for each option: taken for what it plainly is, or refused by its name."""

from __future__ import annotations

import contextlib
import decimal
import math
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.sampling.params import SamplingParams
from penstock.sampling.ranges import RANGES


def checked(**options: Any) -> SamplingParams:
    params = SamplingParams(**options)
    params.validate(100)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    return params


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("zz e", ("zz e",)),
        ("a", ("a",)),
        (None, ()),
        ([], ()),
        ((), ()),
        (["a", "b c"], ("a", "b c")),
        (("a", "b"), ("a", "b")),
        ((np.str_("a"),), ("a",)),
        (np.str_("ab"), ("ab",)),
    ],
)
def test_stops(stop: Any, expected: tuple[str, ...]) -> None:
    found = checked(stop=stop).stop
    assert found == expected
    assert all(type(text) is str for text in found)


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        (None, ()),
        (7, (7,)),
        ([7, 8], (7, 8)),
        ((7,), (7,)),
        (np.int64(7), (7,)),
        ([np.int32(7)], (7,)),
        (np.array([7, 8]), (7, 8)),
        (np.array([], np.int64), ()),
    ],
)
def test_stop_token_ids(token_ids: Any, expected: tuple[int, ...]) -> None:
    found = checked(stop_token_ids=token_ids).stop_token_ids
    assert found == expected
    assert all(type(token) is int for token in found)


def test_numpys_numbers_are_numbers() -> None:
    params = checked(
        n=np.int64(2),
        temperature=np.float32(0.5),
        top_p=np.float64(0.5),
        top_k=np.int8(3),
        seed=np.uint64(2**64 - 1),
        max_tokens=np.int32(5),
        min_p=np.float16(0.25),
        logit_bias={np.int64(3): np.float32(1.5), 4: 1},
        logprobs=np.int64(0),
    )
    assert params == checked(
        n=2,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        seed=2**64 - 1,
        max_tokens=5,
        min_p=0.25,
        logit_bias={3: 1.5, 4: 1},
        logprobs=0,
    )
    assert checked(temperature=Fraction(1, 2)).temperature == 0.5
    assert checked(ignore_eos=np.bool_(True)).ignore_eos is True
    assert checked(logit_bias=None).logit_bias is None
    assert checked(logit_bias={}).logit_bias == {}


REFUSED: list[tuple[str, Any]] = [
    *(("stop", value) for value in [5, 1.5, True, b"a", {"a"}, {"a": 1}, [1], [None], ["a", ""]]),
    *(("stop", value) for value in ["", [["a"]], ["x" * 1025], ["a"] * 65, iter(["a"]), object()]),
    *(("stop_token_ids", value) for value in ["7", ["7"], [7.0], [True], True, 7.5, [None]]),
    *(("stop_token_ids", value) for value in [-1, [100], [10**30], {7}, {7: 1}, [[7]], range(3)]),
    ("stop_token_ids", np.array([[7]])),
    ("stop_token_ids", np.array([7.0])),
    ("logit_bias", np.array([1, 2])),
    *(("logit_bias", value) for value in [[], "x", 3, [(1, 2)], {"5": 1.0}, {1.0: 1.0}]),
    *(("logit_bias", value) for value in [{True: 1.0}, {1: "2"}, {1: None}, {1: True}]),
    *(("logit_bias", value) for value in [{1: math.nan}, {1: 101.0}, {100: 1.0}, {-1: 1.0}]),
    *(("logit_bias", value) for value in [{None: 1.0}, {10**30: 1.0}, {1: 10**5000}]),
    *(
        (name, value)
        for name in RANGES
        if name != "logit_bias"
        for value in ["1", "nan", math.nan, math.inf, True, [1], {}, 10**30, -(10**5000), b"1"]
        + [object(), 1j, decimal.Decimal(1), np.bool_(True), np.array([1, 2]), np.float64("nan")]
    ),
    *((name, 1.5) for name, allowed in RANGES.items() if isinstance(allowed.low, int)),
    *(("bad_words", value) for value in [5, True, [1], [None], ["a", ""], ["a" * 1025]]),
    *(("allowed_token_ids", value) for value in ["7", ["7"], [7.0], [True], [-1], [100], []]),
    ("truncate_prompt_tokens", 0),
    ("truncate_prompt_tokens", -2),
    *(
        (name, value)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
        for value in [0, 1, "true", []]
    ),
    ("grammar", "json"),
    ("grammar", {}),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused_is_named(case: int) -> None:
    name, value = REFUSED[case]
    with pytest.raises(RequestError, match=name) as caught:
        checked(**{name: value})
    assert caught.value.param == name
    assert len(str(caught.value)) < 300


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-2, 120), st.text(max_size=2), st.none()), max_size=3),
    st.dictionaries(st.one_of(st.integers(-2, 120), st.text(max_size=1)), st.floats(), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), VALUES, max_size=4))
def test_anything_else_is_a_request_error(options: dict[str, Any]) -> None:
    params = None
    with contextlib.suppress(RequestError):
        params = checked(**options)
    encoded = msgspec.json.encode(params)
    assert msgspec.json.decode(encoded, type=SamplingParams | None) == params


def test_none_is_the_default() -> None:
    names = SamplingParams.__struct_fields__
    assert checked(**dict.fromkeys(names)) == SamplingParams()
    for name in names:
        assert checked(**{name: None}) == SamplingParams()


def test_copies() -> None:
    params = checked(
        temperature=0.5, stop="x", logit_bias={1: 2.0}, bad_words=["a"], top_k=np.int64(3)
    )
    copy = params.clone()
    assert copy == params
    assert copy.logit_bias is not params.logit_bias
    options = params.to_dict()
    assert options["stop"] == ("x",)
    assert options["top_p"] == 1.0
    assert SamplingParams(**options) == params


def test_what_excludes_each_other() -> None:
    grammar = GrammarSpec(kind="regex", text="a")
    for options in (
        {"bad_words": ["a"], "grammar": grammar},
        {"allowed_token_ids": [1], "grammar": grammar},
        {"allowed_token_ids": [1], "bad_words": ["a"]},
    ):
        with pytest.raises(RequestError, match="cannot go with"):
            checked(**options)
    assert checked(bad_words="a").is_constrained
    assert checked(grammar=grammar).constraint == grammar
    assert not checked().is_constrained
