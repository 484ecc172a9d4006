"""Bodies that cost much to read are refused before, and keys that come twice are found."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.errors import ApiError
from penstock.server.json_size import MAX_NODES, MAX_VALUES, check_nodes, check_unique
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import CHAT, RESPONSES
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.responses.protocol import ResponseRequest

TEXTS = st.text(alphabet='a:\\"{[,]} \n\u20ac\x00', max_size=4)
VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(TEXTS, inner), max_size=3),
    max_leaves=12,
)


def written(value: Any, escape: bool, spaces: bool) -> str:
    """``value`` as JSON, where a list of pairs is an object; keys may come twice."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        colon = " \t: " if spaces else ":"
        members = (
            f"{written(key, escape, spaces)}{colon}{written(each, escape, spaces)}"
            for key, each in value
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(each, escape, spaces) for each in value) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return text.replace(":", "\\u003A") if escape and isinstance(value, str) else text


def repeats(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if value and isinstance(value[0], tuple):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(repeats(each) for _, each in value)
    return any(map(repeats, value))


@given(VALUES, st.booleans(), st.booleans())
def test_a_key_that_comes_twice_is_found_however_it_is_written(
    value: Any, escape: bool, spaces: bool
) -> None:
    body = written(value, escape, spaces).encode()
    decoded = msgspec.json.decode(body)
    if repeats(value):
        with pytest.raises(ApiError, match="is there twice"):
            check_unique(body, decoded)
    else:
        check_unique(body, decoded)


def test_an_escaped_colon_hides_no_key() -> None:
    body = b'{"a":1,"a":"\\u003a"}'  # as many colons as without the first
    with pytest.raises(ApiError, match="'a' is there twice"):
        check_unique(body, msgspec.json.decode(body))


@pytest.mark.parametrize("unit", [b"{}", b"[]", b'[{"":[]}]', b'"\\"",[]', b'"\\\\",[[]]'])
def test_a_body_of_too_many_parts_is_refused_before_it_is_decoded(unit: bytes) -> None:
    body = b"[" + b",".join([unit] * (MAX_NODES + 1)) + b"]"
    with pytest.raises(ApiError) as refused:
        check_nodes(body)
    assert refused.value.status == 400
    assert refused.value.body.error.code == "body_too_complex"


@pytest.mark.parametrize("text", ["{[:", '\\"{[:', "\\\\{[:", "\u20ac{:"])
def test_texts_and_numbers_are_no_parts(text: str) -> None:
    check_nodes(json.dumps({"prompt": text * MAX_NODES}, ensure_ascii=False).encode())
    check_nodes(json.dumps([text] * MAX_NODES, ensure_ascii=False).encode())
    check_nodes(b'["\\"", ' + b",".join([b"1"] * (2 * MAX_NODES)) + b"]")


@pytest.mark.parametrize("element", [{}, [], "", 0, None, "web_search_call.results"])
def test_a_list_of_words_has_a_bound(element: object) -> None:
    body = json.dumps({"input": "a", "include": [element] * 100_000}).encode()
    with pytest.raises(ApiError, match="include holds 100000 elements; at most 256") as refused:
        DialectDecoder(ResponseRequest, rules_of(RESPONSES), "m").decode(body)
    assert refused.value.body.error.param == "include"


def test_the_element_that_is_refused_is_named_by_its_place() -> None:
    taken = ["web_search_call.results", "message.output_text.logprobs"]
    decoder = DialectDecoder(ResponseRequest, rules_of(RESPONSES), "m")
    assert decoder.decode(
        json.dumps({"input": "a", "include": taken}).encode()
    ).request.include == ["message.output_text.logprobs"]
    with pytest.raises(ApiError) as refused:
        decoder.decode(json.dumps({"input": "a", "include": [*taken, "all"]}).encode())
    assert refused.value.body.error.param == "include[2]"


class Unread(dict[str, Any]):
    """An object that nobody may look into."""

    def __iter__(self) -> Any:
        raise AssertionError("the whole value is read")

    items = values = __iter__


def test_an_object_of_any_kind_is_not_read_through() -> None:
    decoder = DialectDecoder(ChatRequest, rules_of(CHAT), "m")
    (rule,) = [each for name, each in decoder._place.rules.items() if name == "metadata"]
    assert rule.effect(Unread(a=1)) == "advice"


def test_values_are_counted_outside_of_strings() -> None:
    check_nodes(b'{"prompt":[' + b"1," * (MAX_VALUES - 1) + b"1]}")
    check_nodes(b'{"prompt":"' + b"a," * (2 * MAX_VALUES) + b'"}')
    with pytest.raises(ApiError, match=f"more than {MAX_VALUES} values") as refused:
        check_nodes(b'{"prompt":[' + b"1," * (MAX_VALUES + 1) + b"1]}")
    assert refused.value.body.error.code == "body_too_complex"
