"""What grammars let through of calls whose texts have quotes of their own."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance
import pytest
from support.drawn_texts import drawn, spelled, tokenizers

from penstock.parsing.answer_grammar import answer_grammar
from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.asked_calls import Calls, Function
from penstock.parsing.forms import HARMONY, ValueForm
from penstock.parsing.known_styles import TOOL_STYLES
from penstock.parsing.style import Start, ToolStyle

(STYLE,) = (style for style in TOOL_STYLES if style.name == "gemma")
MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>')
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 3},
        "code": {"type": "string", "pattern": "^[a-c]+/\\d$"},
        "kind": {"enum": ["x", 2, None, ["y"], {"z": 1}]},
        "count": {"type": "integer", "minimum": 3, "maximum": 5},
        "on": {"type": ["boolean", "null"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 2},
        "tree": {"$ref": "#/$defs/tree"},
        "free": {},
        "odd: key": {"const": "a"},
    },
    "required": ["text"],
    "$defs": {
        "n": {"anyOf": [{"const": 1}, {"type": "string", "maxLength": 2}]},
        "tree": {
            "type": "object",
            "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["of"],
        },
    },
}


def q(text: str) -> str:
    return f'<|"|>{text}<|"|>'


@pytest.mark.parametrize("special", [MARKS, ()], ids=["special", "text"])
@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (f"text:{q('a,}')}", {"text": "a,}"}),
        (f"text:{q('a')},code:{q('ab/5')},kind:{q('x')}", {"code": "ab/5", "kind": "x"}),
        (f"text:{q('a')},kind:[{q('y')}],count:4,on:null", {"kind": ["y"], "on": None}),
        (f"text:{q('a')},kind:{{z:1}},on:true", {"kind": {"z": 1}, "on": True}),
        (f"text:{q('a')},items:[1,{q('ab')}]", {"items": [1, "ab"]}),
        (f"text:{q('a')},tree:{{of:[{{of:[]}}]}}", {"tree": {"of": [{"of": []}]}}),
        (f"text:{q('a')},free:[1.5,{{a:{q('')},b:false}}]", {"free": [1.5, {"a": "", "b": False}]}),
        (f"text:{q('a')},{q('odd: key')}:{q('a')}", {"odd: key": "a"}),
        ("", None),
        (f"text:{q('')}", None),
        (f"text:{q('abcd')}", None),
        ("text:1", None),
        ("text:a", None),
        (f"text:{q('a')},code:{q('/5')}", None),
        (f"text:{q('a')},kind:3", None),
        (f"text:{q('a')},count:6", None),
        (f"text:{q('a')},on:1", None),
        (f"text:{q('a')},items:[]", None),
        (f"text:{q('a')},items:[1,1,1]", None),
        (f"text:{q('a')},tree:{{}}", None),
        (f"text:{q('a')},more:1", None),
        (f"count:4,text:{q('a')}", None),
    ],
)
def test_values(special: tuple[str, ...], arguments: str, value: dict[str, Any] | None) -> None:
    own, theirs = tokenizers(special)
    calls = Calls(STYLE, [Function("f", SCHEMA, "tools[0]")], forced=True, single=True)
    grammar = answer_grammar(own, None, Start.BEGINNING, calls, None)
    matcher = llguidance.LLMatcher(theirs, llguidance.LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    text = f"<|tool_call>call:f{{{arguments}}}<tool_call|>"
    pieces = re.split("(" + "|".join(map(re.escape, MARKS)) + ")", text)
    tokens = [token for piece in pieces if piece for token in spelled(own, piece)]
    assert (matcher.validate_tokens(tokens) == len(tokens)) is (value is not None)
    if value is not None:
        parser = AnswerParser(None, Start.BEGINNING, STYLE, {"f": SCHEMA}, eager=False)
        (call,) = parser.push(text).calls
        read = json.loads(call.arguments)
        assert {key: read[key] for key in value} == value


@pytest.mark.parametrize("style", [style for style in TOOL_STYLES if style.form != HARMONY])
def test_schemas_that_say_nothing_of_use(style: ToolStyle) -> None:
    own, theirs = tokenizers(())
    odd = [
        *({"type": ["string", 5]}, {"type": []}, {"type": "unknown"}, True, {"$ref": "#/no"}),
        *({"type": "array", "minItems": -1, "maxItems": 0.5, "items": True}, {"enum": []}),
        *({"type": "object", "properties": [], "required": ["a", {}]}, {"anyOf": "x"}),
        {"type": "string", "minLength": None, "maxLength": True, "pattern": 5},
    ]
    schema = {"type": "object", "properties": {f"p{i}": each for i, each in enumerate(odd)}}
    calls = Calls(style, [Function("f", schema, "tools[0]")], forced=True, single=True)
    text = answer_grammar(own, None, Start.BEGINNING, calls, None).text
    if isinstance(style.form, ValueForm):  # others leave schemas to llguidance
        matcher = llguidance.LLMatcher(theirs, llguidance.LLMatcher.grammar_from_lark(text))
        assert not matcher.is_error(), matcher.get_error()


def test_what_is_drawn_is_read() -> None:
    own, _ = tokenizers(MARKS)
    calls = Calls(STYLE, [Function("f", SCHEMA, "tools[0]")], forced=True, single=True)
    grammar = answer_grammar(own, None, Start.BEGINNING, calls, None)
    read = 0
    for seed in range(12):
        text = drawn(grammar, MARKS, seed)
        if text is None:
            continue
        parser = AnswerParser(None, Start.BEGINNING, STYLE, {"f": SCHEMA}, eager=False)
        found = parser.push(text)
        found.add(parser.finish())
        (call,) = found.calls
        assert 1 <= len(json.loads(call.arguments)["text"]) <= 3
        read += 1
    assert read > 6
