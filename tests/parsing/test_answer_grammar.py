"""Whatever a grammar of an answer lets through, the parser reads as what was asked for.

Texts are drawn at random from the grammars, token by token, which is what a model does that knows
nothing.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import llguidance
import pytest
from support.drawn_texts import drawn, tokenizers

from penstock.grammar.spec import GrammarSpec
from penstock.parsing.answer_grammar import answer_grammar
from penstock.parsing.answer_parser import AnswerDelta, AnswerParser
from penstock.parsing.asked_calls import Calls, Function
from penstock.parsing.forms import ChannelForm, PythonForm, TagForm
from penstock.parsing.known_styles import REASONING_STYLES, TOOL_STYLES
from penstock.parsing.style import ReasoningStyle, Start, ToolStyle

MARKS: tuple[str, ...] = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")
MARKS += ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")
MARKS += ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|tool_call_begin|>")
MARKS += ("<|tool_call|>", "<|/tool_call|>", "<|tool_call_end|>")
MARKS += ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")
MARKS += ("<|tool_call>", "<tool_call|>", '<|"|>', "<start_function_call>", "<escape>")
MARKS += ("<end_function_call>", "<arg_key>", "</arg_key>", "<｜tool_sep｜>")
MARKS += ("<|START_ACTION|>", "<|END_ACTION|>", "<|python_start|>", "<|python_end|>")
MARKS += tuple(mark for style in REASONING_STYLES for mark in (style.opening, style.closing))
MARKS = tuple(dict.fromkeys(MARKS))
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "n": {"$ref": "#/$defs/n"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"n": {"enum": [1, 2, "x/y"]}},
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = [
    Function("get_weather", WEATHER, "tools[0].function.parameters"),
    Function("get-time", NOTHING, "tools[1].function.parameters"),
    Function("anything", {"type": "object"}, "tools[2].function.parameters"),
]
STYLES = {style.name: style for style in TOOL_STYLES}
MARKED = [name for name, style in STYLES.items() if not isinstance(style.form, ChannelForm)]
"""Those whose calls are between marks in a text."""
Beginning = tuple[ReasoningStyle | None, Start]
STARTS = (Start.BEGINNING, Start.REASONING)
(THINK,) = (style for style in REASONING_STYLES if style.name == "think")
REASONING: list[Beginning] = [(None, Start.BEGINNING), *((THINK, start) for start in STARTS)]


def read(text: str, style: ToolStyle | None, reasoning: Beginning = REASONING[0]) -> AnswerDelta:
    names = {function.name: function.schema for function in FUNCTIONS}
    parser = AnswerParser(*reasoning, style, names, eager=False)
    found = parser.push(text)
    found.add(parser.finish())
    return found


def check(call: Any) -> None:
    arguments = json.loads(call.arguments)
    if call.name == "get_weather":
        assert set(arguments) <= {"city", "n"}
        assert len(arguments["city"]) <= 5
        assert arguments.get("n", 1) in (1, 2, "x/y")
    else:
        assert isinstance(arguments, dict)
        assert arguments == {} or call.name == "anything"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("special", [MARKS, MARKS[:3], ()], ids=["all", "no args", "none"])
@pytest.mark.parametrize("style", MARKED)
def test_forced_calls(style: str, special: tuple[str, ...]) -> None:
    finished = 0
    for reasoning, single in itertools.product(REASONING, (True, False)):
        calls = Calls(STYLES[style], FUNCTIONS, forced=True, single=single)
        grammar = answer_grammar(tokenizers(special)[0], *reasoning, calls, None)
        for seed in range(2):
            text = drawn(grammar, special, seed)
            if text is None:
                continue
            found = read(text, STYLES[style], reasoning)
            assert found.content == "", text
            assert found.calls, text
            assert len(found.calls) == 1 or not single
            for call in found.calls:
                check(call)
            finished += 1
    assert finished > 4


@pytest.mark.thinned(3)
@pytest.mark.parametrize("special", [MARKS, ()], ids=["special", "text"])
@pytest.mark.parametrize("style", MARKED)
def test_calls_among_text(style: str, special: tuple[str, ...]) -> None:
    own, _ = tokenizers(special)
    opening = STYLES[style].opening
    called = 0
    for reasoning, single in itertools.product((REASONING[0], REASONING[1]), (True, False)):
        calls = Calls(STYLES[style], FUNCTIONS, forced=False, single=single)
        grammar = answer_grammar(own, *reasoning, calls, None)
        bare = "[" if isinstance(STYLES[style].form, PythonForm) else "{"
        for seed, begin in itertools.product(range(2), (opening or bare, "")):
            if STYLES[style].bare and not special:
                begin = begin and bare
            text = drawn(grammar, special, seed, begin)
            if text is None:
                continue
            found = read(text, STYLES[style], reasoning)
            assert not opening or opening not in found.content, text
            assert len(found.calls) <= 1 or not single
            for call in found.calls:
                check(call)
            called += bool(found.calls)
    assert called > 3


@pytest.mark.parametrize("special", [MARKS, ()], ids=["special", "text"])
@pytest.mark.parametrize(
    ("content", "fits"),
    [
        (GrammarSpec(kind="json_object"), lambda text: isinstance(json.loads(text), dict)),
        (
            GrammarSpec(kind="json_schema", text='{"enum": ["}", 2]}'),
            lambda text: json.loads(text) in ("}", 2),
        ),
        (GrammarSpec(kind="regex", text="[a-c]/\\\\/\\d+\n"), lambda text: text[1:4] == "/\\/"),
        (
            GrammarSpec(kind="lark", text='start: "}" x\nx: %json {"type": "null"} // }'),
            lambda text: text == "}null",
        ),
        (GrammarSpec(kind="choice", text='["a\\"b", "ž"]'), lambda text: text in ('a"b', "ž")),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_content_after_reasoning(special: tuple[str, ...], content: GrammarSpec, fits: Any) -> None:
    own, _ = tokenizers(special)
    assert answer_grammar(own, *REASONING[0], None, content) == content
    finished = 0
    for reasoning, begin in ((REASONING[1], ""), (REASONING[1], "<think>"), (REASONING[2], "")):
        grammar = answer_grammar(own, *reasoning, None, content)
        for seed in range(4):
            text = drawn(grammar, special, seed, begin)
            if text is not None:
                found = read(text, None, reasoning)
                assert fits(found.content), text
                finished += 1
    assert finished > 3


def test_space_in_content_after_reasoning_is_bounded() -> None:
    own, theirs = tokenizers(())
    grammar = answer_grammar(own, *REASONING[1], None, GrammarSpec(kind="json_object"))
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar.text)
    for text in ("{" + " " * 50, " " * 50 + "<think>", "<think></think>" + "\n" * 50):
        matcher = llguidance.LLMatcher(theirs, compiled)
        assert matcher.validate_tokens(list(text.encode())) < len(text)


def test_content_beside_calls() -> None:
    own, _ = tokenizers(())
    content = GrammarSpec(kind="json_schema", text='{"const": 5}')
    calls = Calls(STYLES["hermes"], FUNCTIONS[:2], forced=False, single=False)
    grammar = answer_grammar(own, *REASONING[1], calls, content)
    for seed in range(5):
        assert drawn(grammar, (), seed, "5") == "5"
        text = drawn(grammar, (), seed, "<tool_call>")
        if text is not None:
            found = read(text, STYLES["hermes"])
            assert found.calls
            assert found.content == ""


TAGGED = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "code": {"type": "string", "pattern": "^[a-c]+/\\d$", "minLength": 3},
        "kind": {"enum": ["x", "y z"]},
        "free": {"type": ["string", "null"]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["text", "other"],
    "$defs": {"item": {"enum": [1, 2]}},
}


@pytest.mark.parametrize("style", ["qwen3-coder", "glm", "minimax", "deepseek-v3.2"])
@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"text": "Any\n\ntext <b> {", "other": "null"}, True),
        ({"text": "", "code": "abc/5", "kind": "y z", "list": "[1, 2]", "other": "0"}, True),
        ({"text": "\n", "free": '"a"', "other": "{}"}, True),
        ({"other": "null"}, False),
        ({"text": "a"}, False),
        ({"text": "a", "code": "abc", "other": "null"}, False),
        ({"text": "a", "code": "/5", "other": "null"}, False),
        ({"text": "a", "kind": "z", "other": "null"}, False),
        ({"text": "a", "free": "a", "other": "null"}, False),
        ({"text": "a", "list": "[3]", "other": "null"}, False),
        ({"text": "a", "other": "null", "more": "1"}, False),
    ],
)
def test_tagged_arguments(style: str, arguments: dict[str, str], taken: bool) -> None:
    own, theirs = tokenizers(())
    form = STYLES[style].form
    assert isinstance(form, TagForm)
    calls = Calls(STYLES[style], [Function("f", TAGGED, "tools[0]")], forced=True, single=True)
    text = "".join(
        f"{form.before_key}{key}{form.behind_key(key in ('text', 'code', 'kind'))}"
        f"{form.before_value}{value}{form.after_value}"
        for key, value in arguments.items()
    )
    text = f"{form.before_name}f{form.after_name}{text}{form.end}"
    if style == "minimax":
        text = f'<minimax:tool_call>\n<invoke name="{text}\n</minimax:tool_call>'
    elif style == "deepseek-v3.2":
        text = f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{text}\n</｜DSML｜function_calls>'
    else:
        around = "\n" if style == "qwen3-coder" else ""
        text = f"<tool_call>{around}{text}" + ("\n</tool_call>" if around else "")
    compiled = llguidance.LLMatcher.grammar_from_lark(
        answer_grammar(own, *REASONING[0], calls, None).text
    )
    matcher = llguidance.LLMatcher(theirs, compiled)
    assert not matcher.is_error(), matcher.get_error()
    accepted = matcher.validate_tokens(list(text.encode())) == len(text.encode())
    assert accepted is taken
    if taken:
        parser = AnswerParser(*REASONING[0], STYLES[style], {"f": TAGGED}, eager=False)
        (call,) = parser.push(text).calls
        read = json.loads(call.arguments)
        assert read["text"] == arguments["text"]
        assert set(read) == set(arguments)


@pytest.mark.parametrize(
    ("call", "taken"),
    [
        ('f(text="a, b) ]", other=null, code="ab/1", list=[1, 2])', True),
        ('f(text="", other={"a": true}, kind="y z")', True),
        ('f(text="a")', False),
        ('f(other=1, text="a")', False),
        ('f(text="a", other=1, code="ab")', False),
        ('f(text="a", other=1, more=1)', False),
    ],
)
def test_python_arguments(call: str, taken: bool) -> None:
    own, theirs = tokenizers(())
    calls = Calls(STYLES["pythonic"], [Function("f", TAGGED, "tools[0]")], forced=True, single=True)
    compiled = llguidance.LLMatcher.grammar_from_lark(
        answer_grammar(own, *REASONING[0], calls, None).text
    )
    matcher = llguidance.LLMatcher(theirs, compiled)
    text = f"[{call}]"
    assert (matcher.validate_tokens(list(text.encode())) == len(text)) is taken
    if taken:
        parser = AnswerParser(*REASONING[0], STYLES["pythonic"], {"f": TAGGED}, eager=False)
        (found,) = parser.push(text).calls
        assert {"text", "other"} <= set(json.loads(found.arguments))


def test_reasoning_that_names_the_mark_of_calls() -> None:
    own, theirs = tokenizers(())
    for forced in (True, False):
        calls = Calls(STYLES["hermes"], FUNCTIONS, forced=forced, single=True)
        grammar = answer_grammar(own, *REASONING[1], calls, None)
        text = "<think>I write <tool_call> then.</think>\n\n<tool_call>\n"
        text += '{"name": "get-time", "arguments": {}}\n</tool_call>'
        compiled = llguidance.LLMatcher.grammar_from_lark(grammar.text)
        matcher = llguidance.LLMatcher(theirs, compiled)
        assert matcher.consume_tokens(list(text.encode())), matcher.get_error()
        assert matcher.is_accepting()
        assert [call.name for call in read(text, STYLES["hermes"], REASONING[1]).calls] == [
            "get-time"
        ]
