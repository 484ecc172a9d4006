"""The table of fields, and that documents say what it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.errors import ApiError
from penstock.server.field_docs import BODIES, TABLE, markdown
from penstock.server.fields.places import Place
from penstock.server.fields.rules import EVERY_NAME, Rule, Values, any_of, these
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.protocol import ChatRequest
from penstock.server.openai.template_reads import TemplateReads

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
CHAT = "/v1/chat/completions"


def test_the_document_holds_the_table() -> None:
    assert DOCUMENT.read_text(encoding="utf-8").endswith(markdown()), (
        "run: python -m penstock.server.field_docs, and put its output at the end of "
        "docs/clients.md"
    )


def test_a_field_has_one_rule_at_an_endpoint() -> None:
    reported = Counter((rule.field, path) for rule in TABLE for path in rule.endpoints)
    assert [field for field, count in reported.items() if count > 1] == []
    assert {path for rule in TABLE for path in rule.endpoints} == {path for path, *_ in BODIES}


@pytest.mark.parametrize(("path", "body", "rules"), BODIES)
def test_rules_are_of_fields_that_nothing_acts_on(
    path: str, body: type[msgspec.Struct], rules: tuple[Rule, ...]
) -> None:
    """But those that tell of some values of a field, or the elements of a list."""
    place = Place.of(body, rules)
    in_part = ["include[]", "messages[].tool_calls", "continue_final_message"]
    for rule in rules:
        known = rule.path[-1] in place.at(".".join(rule.path[:-1])).names
        assert known == (rule.field in in_part), rule.field
        if rule.alias:
            assert rule.alias in place.at(".".join(rule.path[:-1])).names


def test_structs_that_endpoints_share_have_the_same_rules() -> None:
    """The OpenAPI document has each of them once."""
    found: dict[str, set[str]] = {}
    for _, body, rules in BODIES:
        places = [Place.of(body, rules)]
        while places:
            place = places.pop()
            places += place.inner.values()
            for name in place.structs:
                reported = found.setdefault(name, set(place.rules))
                assert reported == set(place.rules), name


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.field)
def test_every_rule_says_why_in_a_line(rule: Any) -> None:
    assert rule.why
    assert "\n" not in rule.why
    assert rule.field.isascii()
    assert rule.path[-1] == EVERY_NAME or rule.path[-1].isidentifier()


@pytest.mark.parametrize(
    ("values", "inside", "outside"),
    [
        (these(False), [False], [0, 0.0, True, None, "false", []]),
        (these(1.0), [1, 1.0], [True, "1", 1.5, [1]]),
        (these({}), [{}], [[], "", False, {"a": 1}]),
        (these({"a": False}), [{"a": False}], [{"a": 0}, {"a": None}, {}]),
        (these(["text"]), [["text"]], [[], ["text", "audio"], "text"]),
        (any_of(int), [0, -5], [True, 1.5, "1"]),
        (any_of(str), ["", "a"], [1, ["a"]]),
        (any_of(dict[str, Any]), [{}, {"a": [1]}], [[], "a"]),
        (any_of(Any), [1, "a", [], {}], []),
    ],
    ids=str,
)
def test_values_are_compared_as_json(
    values: Values, inside: list[object], outside: list[object]
) -> None:
    assert all(value in values for value in inside)
    assert not any(value in values for value in outside)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 2) | st.sampled_from(["", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "effort", "content", "tool_calls", "x"]), inner)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted({rule.path[0] for rule in rules_of(CHAT)} | {"x", "stream"}))
MESSAGE_KEYS = sorted(
    {rule.path[1] for rule in rules_of(CHAT) if rule.path[0] == "messages"}
    | {"content", "role", "tool_call_id"}
)
READS = TemplateReads.of({"default": "{{ thinking }}"})
MESSAGES = st.lists(st.dictionaries(st.sampled_from(MESSAGE_KEYS), JSON, max_size=3), max_size=2)


@given(st.dictionaries(NAMES, JSON, max_size=4), MESSAGES)
def test_any_body_is_decoded_or_refused_by_name(
    fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    decoder = DialectDecoder(ChatRequest, rules_of(CHAT), "fake", READS)
    body = {"messages": [{"role": "user", "content": "a"}, *messages], **fields}
    refused: ApiError | None = None
    try:
        decoded = decoder.decode(msgspec.json.encode(body))
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        assert refused.body.error.param
        return
    assert decoded.request.model == "fake"
    # What was decoded knows nothing of what was taken out, and a second look finds nothing.
    again = decoder.decode(msgspec.json.encode(msgspec.to_builtins(decoded.request)))
    assert again.ignored == ()
    assert again.request == decoded.request


@pytest.mark.parametrize(
    ("templates", "reads"),
    [
        ({}, []),
        ({"default": "{% if enable_thinking is defined %}x{% endif %}"}, ["enable_thinking"]),
        ({"default": "{% set thinking = thinking | default(true) %}{{ thinking }}"}, ["thinking"]),
        ({"default": "{% set thinking = true %}{{ thinking }}"}, []),
        ({"default": "{% macro f() %}{{ reasoning_effort }}{% endmacro %}{{ f() }}"},
         ["reasoning_effort"]),
        ({"default": "{{ thinking }}", "tool_use": "{{ reasoning_effort }}"}, []),
        ({"default": "{{ b }}{% generation %}{{ a }}{% endgeneration %}"}, ["a", "b"]),
        ({"default": "{{ thinking"}, []),
        ({"default": "{{ 'x' | center(2000000000) }}{{ thinking }}"}, ["thinking"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_template_reads(templates: dict[str, str], reads: list[str]) -> None:
    assert TemplateReads.of(templates).always == set(reads)
