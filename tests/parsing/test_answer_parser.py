"""Answers taken apart: the same for any cut, nothing lost, and only what is a call is one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.styles import REASONING_STYLES, TOOL_STYLES, Styles
from penstock.parsing.tagged_values import json_value

TOOLS: dict[str, Any] = {
    "f": {},
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "array"}, "note": {}}
    },
}
STYLES = {style.name: style for style in TOOL_STYLES}
THINK = REASONING_STYLES[0]
WEATHER = '{"name": "get_weather", "arguments": {"city": "Brno {", "days": [1, -2.5e3, null]}}'
ARGUMENTS = '{"city": "Brno {", "days": [1, -2.5e3, null]}'
F = '{"arguments": {}, "name": "f"}'

Answer = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, content, and calls: name and arguments."""


def parse(
    pieces: Sequence[str],
    style: str | None,
    *,
    eager: bool = False,
    single: bool = False,
    reasoning: bool = False,
    inside: bool = False,
) -> Answer:
    parser = AnswerParser(
        THINK if reasoning else None,
        inside,
        None if style is None else STYLES[style],
        TOOLS,
        eager=eager,
        single=single,
    )
    thought, content = "", ""
    calls: list[tuple[str, str]] = []
    for delta in [*map(parser.push, pieces), parser.finish()]:
        thought += delta.reasoning
        content += delta.content
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append((call.name, call.arguments))
            else:
                assert call.index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
    assert parser.num_calls == len(calls)
    return thought, content, calls


ONE = [("get_weather", ARGUMENTS)]
TWO = [*ONE, ("f", "{}")]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("style", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n{WEATHER}\n</tool_call>", "", ONE),
        ("hermes", f"<tool_call>{WEATHER}", "", ONE),
        (
            "hermes",
            f"See.\n\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{F}\n</tool_call>\n",
            "See.",
            TWO,
        ),
        ("hermes", f"<tool_call>{WEATHER}</tool_call>\nDone. ", "Done. ", ONE),
        ("llama3", WEATHER.replace("arguments", "parameters"), "", ONE),
        ("llama3", f"<|python_tag|>{WEATHER}; {F}", "", TWO),
        ("llama3", f" {WEATHER}\n{F}", "", TWO),
        ("mistral", f"[TOOL_CALLS][{WEATHER}, {F}]", "", TWO),
        ("mistral", f"[TOOL_CALLS] [{WEATHER}]", "", ONE),
        ("mistral", f"Yes.[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]f[ARGS]{{}}", "Yes.", TWO),
        ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "", ONE),
        ("generic", f"Yes.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{F}", "Yes.", TWO),
        (
            "deepseek-v3.1",
            f"Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}"
            "<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
            "Yes.",
            TWO,
        ),
        ("deepseek-v3.1", f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}", "", ONE),
        (
            "deepseek-v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
            "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nDone.",
            "Done.",
            TWO,
        ),
        (
            "kimi",
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
            "functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            "I look.",
            TWO,
        ),
        (
            "qwen3-coder",
            "Yes.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBrno {\n</parameter>\n"
            "<parameter=days>\n[1, -2.5e3, null]\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
            "Yes.",
            TWO,
        ),
        (
            "qwen3-coder",
            "<tool_call><function=get_weather><parameter=city>Brno {</parameter><parameter=days>"
            "[1, -2.5e3, null]</parameter></function>",
            "",
            ONE,
        ),
        (
            "glm",
            "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Brno {</arg_value>\n"
            "<arg_key>days</arg_key><arg_value>[1, -2.5e3, null]</arg_value>\n</tool_call>"
            "<tool_call>f</tool_call>",
            "",
            TWO,
        ),
        (
            "minimax",
            'Yes.<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Brno {'
            '</parameter>\n<parameter name="days">[1, -2.5e3, null]</parameter>\n</invoke>\n'
            '<invoke name="f">\n</invoke>\n</minimax:tool_call>\n',
            "Yes.",
            TWO,
        ),
        (
            "pythonic",
            "[get_weather(city='Brno {', days=[1, -2.5e3, None,],), f()]",
            "",
            TWO,
        ),
        ("pythonic", ' [ get_weather( city = "Brno {", days=[1, -2.5e3, null] ) ]', "", ONE),
        ("phi4", f"<|tool_call|>[{WEATHER}, {F}]<|/tool_call|>", "", TWO),
        ("phi4", f"<|tool_call|>{WEATHER}<|/tool_call|><|tool_call|>{F}<|/tool_call|>", "", TWO),
        ("granite", f"<|tool_call|>[{WEATHER}, {F}]", "", TWO),
        ("json", f"\n[{WEATHER},\n{F}]", "", TWO),
        ("json", WEATHER, "", ONE),
    ],
)
def test_calls(
    style: str, text: str, content: str, calls: list[tuple[str, str]], eager: bool
) -> None:
    assert parse([text], style, eager=eager) == ("", content, calls)
    assert parse(list(text), style, eager=eager) == ("", content, calls)
    assert parse([text], style, eager=eager, single=True)[2] == calls[:1]


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(None, False, STYLES["hermes"], TOOLS, eager=True)
    seen = ""
    for i, char in enumerate(text := f"<tool_call>{WEATHER}</tool_call>"):
        seen += "".join(call.arguments for call in parser.push(char).calls)
        if parser.num_calls:
            start = text.index(ARGUMENTS)
            assert seen == text[start : min(i + 1, start + len(ARGUMENTS))]
    assert seen == ARGUMENTS


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("hermes", "<tool_call>\nnonsense</tool_call> "),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>'),
        ("hermes", '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": "text"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "name": "f", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f\n", "arguments": {}}</tool_call>'),
        ("hermes", "<tool_call>"),
        ("hermes", "a < b <tool_cal"),
        ("hermes", '<tool_call>{"arguments": ' + '{"a":' * 200),
        ("llama3", '{"name": "Brno", "population": 400000}'),
        ("llama3", "<|python_tag|>print(1)"),
        ("mistral", "[TOOL_CALLS]unknown{}"),
        ("mistral", "[TOOL_CALLS]" + "f" * 300),
        ("mistral", "[TOOL_CALLS][]"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜> none"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>no<｜tool▁sep｜>{}"),
        ("deepseek-v3", "<｜tool▁call▁begin｜>code<｜tool▁sep｜>f\n```json\n{}"),
        ("kimi", "<|tool_call_begin|>functions.no:0<|tool_call_argument_begin|>{}"),
        ("kimi", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>text"),
        ("qwen3-coder", "<tool_call>\n<function=no>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function=f>\ntext"),
        ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a\nb>"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=b)]"),
        ("pythonic", "[f(a=f())]"),
        ("pythonic", "[f(a={1: 2})]"),
        ("pythonic", "[f(a=1 b=2)]"),
        ("pythonic", "[f(a='x)]"),
        ("pythonic", "[f(a=" + "[" * 200),
        ("pythonic", "[no()]"),
        ("pythonic", "[1, 2]"),
        ("pythonic", "f()"),
        ("glm", "<tool_call>no\n</tool_call>"),
        ("glm", "<tool_call>f</tool"),
        ("minimax", '<minimax:tool_call>\n<invoke name="f" />'),
        ("json", "[1, 2, 3]"),
        ("json", '{"a": [1, 2], "name": "f"}'),
        ("json", "  plain text\n"),
    ],
)
def test_what_is_no_call_is_content_to_the_last_character(
    style: str, text: str, eager: bool
) -> None:
    assert parse([text], style, eager=eager) == ("", text, [])
    assert parse(list(text), style, eager=eager) == ("", text, [])


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, ' a\n"b" ', '" a\\n\\"b\\" "'),
        ({"type": "integer"}, " 5 ", "5"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "false", "false"),
        ({"type": ["string", "null"]}, "None", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/n"}]}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": 1}, "1", "1"),
        ({"type": "object"}, '{"a": [1]}', '{"a": [1]}'),
        ({}, '{"a"', '"{\\"a\\""'),
        ({}, "[" * 100_000, json.dumps("[" * 100_000)),
        (True, "word", '"word"'),
    ],
)
def test_tagged_values(schema: Any, text: str, value: str) -> None:
    assert json_value(text, schema) == value


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'it\\'s \"so\"'", 'it\'s "so"'),
        ('"\\ud83d\\ude00 \\x41\\n\\q"', "\U0001f600 A\n\\q"),
        ('"\\ud83d"', "\ufffd"),
        ("{'a': [True, {}], 'b': -0.5,}", {"a": [True, {}], "b": -0.5}),
        ("'line\nbreak ) ]'", "line\nbreak ) ]"),
    ],
)
def test_python_literals(literal: str, value: Any) -> None:
    (call,) = parse(list(f"[f(a={literal})]"), "pythonic")[2]
    assert call[0] == "f"
    assert json.loads(call[1]) == {"a": value}


def test_a_broken_call_does_not_hide_the_next() -> None:
    text = f"<tool_call>oops <tool_call>{WEATHER}</tool_call>"
    assert parse([text], "hermes") == ("", "<tool_call>oops", ONE)
    text = f"[TOOL_CALLS][{WEATHER}, oops]"
    assert parse([text], "mistral") == ("", ", oops]", ONE)


def test_a_call_that_breaks_in_its_arguments() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1, oops}}</tool_call>'
    assert parse([text], "hermes") == ("", text, [])
    announced = parse([text], "hermes", eager=True)
    assert announced == ("", "oops}}</tool_call>", [("f", '{"a": 1, ')])
    cut = text[: text.index(" oops")]
    assert parse([cut], "hermes") == ("", cut, [])
    assert parse([cut], "hermes", eager=True) == ("", "", [("f", '{"a": 1,')])


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nHm.\n\nYes.\n</think>\n\nHello. ", False, "Hm.\n\nYes.", "Hello. "),
        ("Hm.</think>Hello.", True, "Hm.", "Hello."),
        (" <think></think>Hello.", False, "", "Hello."),
        ("<think>Hm. </thin", False, "Hm. </thin", ""),
        ("<think>Hm.\n", False, "Hm.", ""),
        (" \nHello. <think>no</think>", False, "", " \nHello. <think>no</think>"),
        ("<thi", False, "", "<thi"),
        ("  ", False, "", "  "),
        ("", True, "", ""),
    ],
)
def test_reasoning(text: str, inside: bool, reasoning: str, content: str) -> None:
    for pieces in ([text], list(text)):
        found = parse(pieces, None, reasoning=True, inside=inside)
        assert found == (reasoning, content, [])


def test_calls_inside_reasoning_are_thoughts() -> None:
    text = f"<think><tool_call>{F}</tool_call></think>\n<tool_call>{WEATHER}</tool_call>"
    assert parse([text], "hermes", reasoning=True) == (f"<tool_call>{F}</tool_call>", "", ONE)


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>"),
        *(WEATHER, F, ARGUMENTS, '{"name": "f", "arguments": {"a": ', '"x\\u00e9\\""', "}}", "}"),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "function",
            "<｜tool▁sep｜>",
            "```json",
        ),
        *(
            "```",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "<|tool_call_begin|>",
            "functions.",
        ),
        *("<|tool_calls_section_begin|>", ":0", "<|tool_call_argument_begin|>"),
        *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call|>", "<|/tool_call|>"),
        *(
            "<function=",
            ">",
            "</function>",
            "<parameter=a>",
            "</parameter>",
            "<arg_key>a</arg_key>",
        ),
        *("<arg_value>", "</arg_value>", "<minimax:tool_call>", '<invoke name="', '">'),
        *('<parameter name="a">', "</invoke>", "</minimax:tool_call>"),
        *("[f(", "f(", "a=", ")", ")]", "None", "'b\\'"),
        *("[", "]", ",", ";", "{", "f", "[ARGS]", " ", "\n", "\u2003", "text", "<", "</t", "1.5"),
    ]
)


@given(
    text=st.lists(FRAGMENTS, max_size=10).map("".join),
    cuts=st.lists(st.integers(0, 400), max_size=30),
    style=st.sampled_from([None, *STYLES]),
    eager=st.booleans(),
    single=st.booleans(),
    reasoning=st.booleans(),
    inside=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_where_the_text_is_cut_does_not_matter(
    text: str, cuts: list[int], style: str | None, **how: Any
) -> None:
    whole = parse([text], style, **how)
    marks = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(marks)]
    assert parse(pieces, style, **how) == whole
    assert parse(list(text), style, **how) == whole
    _, content, calls = whole
    if not how["reasoning"] and not calls:
        assert content == text
    if not how["eager"]:
        for _, arguments in calls:
            assert isinstance(json.loads(arguments), dict)


@given(text=st.text(st.sampled_from('{}[]",:\\ua01-.e tfn\n'), max_size=30))
@settings(max_examples=250, deadline=None)
def test_arguments_are_json_objects_and_all_of_them_are_taken(text: str) -> None:
    arguments = '{"a": ' + text + "}"
    try:
        valid = isinstance(json.loads(arguments, parse_constant=lambda _: 1 / 0), dict)
    except (ValueError, ZeroDivisionError):
        valid = False
    written = '{"name": "f", "arguments": ' + arguments + "}"
    calls = parse([written], "json")[2]
    assert (calls == [("f", arguments)]) if valid else all(a != arguments for _, a in calls)


def test_styles_are_found_by_the_chat_template() -> None:
    def found(text: str) -> tuple[str | None, str | None]:
        styles = Styles.choose("auto", "auto", {"default": text})
        return styles.tools and styles.tools.name, styles.reasoning and styles.reasoning.name

    assert found("{{ messages }}") == ("generic", None)
    assert found("{{ messages }}{{ tools }}") == (None, None)
    assert found("{% if tools %}<tool_call>{% endif %}</think>") == ("hermes", "think")
    assert found("{% if tools %}<tool_call><function=name>{% endif %}") == ("qwen3-coder", None)
    assert found("{% if tools %}<tool_call><arg_key></think>{% endif %}") == ("glm", "think")
    assert found("{{ tools }}[func_name1(param=value)]") == ("pythonic", None)
    assert found("{{ tools }}<minimax:tool_call><invoke name=") == ("minimax", None)
    v31 = "{{ tools }}<｜tool▁call▁begin｜>"
    assert found(v31) == ("deepseek-v3.1", None)
    assert found(v31 + "```json</think>") == ("deepseek-v3", "think")
    assert found("<|im_system|>tool_declare<|im_middle|>{{ tools }}") == ("kimi", None)
    assert found("{{ tools }}<|tool_call|>{{ call }}<|/tool_call|>") == ("phi4", None)
    assert found("{{ tools }}<|tool_call|>{{ calls }}") == ("granite", None)
    assert found(v31.replace("tools", "messages")) == ("generic", None)
    assert found("tools[AVAILABLE_TOOLS][TOOL_CALLS][THINK][/THINK]") == ("mistral", "mistral")
    assert found('tools {"name": , "parameters": } ipython') == ("llama3", None)
    chosen = Styles.choose("json", "none", {"default": "<tool_call></think>"})
    assert chosen.tools is STYLES["json"]
    assert chosen.reasoning is None
    assert str(chosen) == "tool calls: json, reasoning: none"
    with pytest.raises(ConfigError, match="--tool-call-parser 'x'"):
        Styles.choose("x", "auto", {})
