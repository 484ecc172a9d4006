"""Any call that a model writes in a style is read back, wherever the text is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.written_calls import answer_with

from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.known_styles import TOOL_STYLES
from penstock.parsing.style import Start

STYLES = {style.name: style for style in TOOL_STYLES}
# What ends a text in one of the styles, and what a template would not write.
MARKS = (
    *("<escape>", '<|"|>', "</parameter>", "</arg_value>", "</steptml:parameter>"),
    "</｜DSML｜parameter>",
)
TEXTS = st.text(max_size=12).filter(lambda text: not any(mark in text for mark in MARKS))
KEYS = st.from_regex("[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.tuples(st.sampled_from(["f", "get-time", "x.y_z"]), st.dictionaries(KEYS, VALUES))
TYPES = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}


def schema_of(value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, bool):
        return {"type": "null" if value is None else "boolean"}
    return {"type": TYPES[type(value)]}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("style", STYLES)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_calls_are_read_back(style: str, data: st.DataObject) -> None:
    calls = data.draw(st.lists(CALLS, min_size=1, max_size=3, unique_by=lambda call: call[0]))
    text = answer_with(STYLES[style], calls)
    tools = {
        name: {"properties": {key: schema_of(value) for key, value in arguments.items()}}
        for name, arguments in calls
    }
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    for eager in (False, True):
        parser = AnswerParser(None, Start.BEGINNING, STYLES[style], tools, eager=eager)
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        found = parser.push("")
        for delta in (*map(parser.push, pieces), parser.finish()):
            found.add(delta)
        assert found.content == ""
        read = [(call.name, json.loads(call.arguments)) for call in found.calls]
        assert read == [(name, dict(arguments)) for name, arguments in calls]
