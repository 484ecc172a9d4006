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
from penstock.parsing.calls.tagged_values import json_value
from penstock.parsing.known_styles import REASONING_STYLES, TOOL_STYLES
from penstock.parsing.style import Start
from penstock.parsing.styles import Styles

TOOLS: dict[str, Any] = {
    "f": {},
    "get_weather": {
        "properties": {"city": {"type": "string"}, "days": {"type": "array"}, "note": {}}
    },
}
STYLES = {style.name: style for style in TOOL_STYLES}
REASONING = {style.name: style for style in REASONING_STYLES}
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
    reasoning: str | None = None,
    inside: bool = False,
) -> Answer:
    parser = AnswerParser(
        None if reasoning is None else REASONING[reasoning],
        Start.REASONING if inside else Start.BEGINNING,
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
        *(
            (
                style,
                f'Yes.\n\n<｜DSML｜{section}>\n<｜DSML｜invoke name="get_weather">\n'
                '<｜DSML｜parameter name="city" string="true">Brno {</｜DSML｜parameter>\n'
                '<｜DSML｜parameter name="days" string="false">[1, -2.5e3, null]'
                "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
                f'<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜{section}>',
                "Yes.",
                TWO,
            )
            for style, section in (
                ("deepseek-v3.2", "function_calls"),
                ("deepseek-v4", "tool_calls"),
            )
        ),
        (
            "command-r",
            'Action: ```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
            f'{ARGUMENTS}\n    }},\n    {{"tool_name": "f", "parameters": {{}}}}\n]\n```',
            "",
            TWO,
        ),
        (
            "command-r",
            'I look.\nAction: ```json\n[{"tool_name": "get_weather", "parameters": '
            f"{ARGUMENTS}}}]```",
            "I look.",
            ONE,
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
        (
            "gemma",
            '<|tool_call>call:get_weather{city:<|"|>Brno {<|"|>,days:[1,-2.5e3,null]}<tool_call|>'
            "<|tool_call>call:f{}<tool_call|>",
            "",
            TWO,
        ),
        (
            "functiongemma",
            "I look. <start_function_call>call:get_weather{city:<escape>Brno {<escape>, days : "
            "[1, -2.5e3, None]}<end_function_call>",
            "I look.",
            ONE,
        ),
        # A text without its quotes, and a list that is left open to the last comma.
        (
            "functiongemma",
            "<start_function_call>call:get_weather{<escape>city<escape>:Brno {,days:[1,-2.5e3,null,"
            "],}",
            "",
            ONE,
        ),
        ("llama4", f"<|python_start|>{WEATHER}<|python_end|>", "", ONE),
        ("llama4", WEATHER.replace("arguments", "parameters"), "", ONE),
        (
            "llama4-pythonic",
            "<|python_start|>[get_weather(city='Brno {', days=[1, -2.5e3, None]), f()]"
            "<|python_end|>",
            "",
            TWO,
        ),
        ("llama4-pythonic", '[get_weather(city="Brno {", days=[1, -2.5e3, null])]', "", ONE),
        (
            "cohere",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
            f'"parameters": {ARGUMENTS}}},\n    {{"tool_call_id": "1", "tool_name": "f", '
            '"parameters": {}}\n]<|END_ACTION|>',
            "",
            TWO,
        ),
        (
            "apertus",
            f'<|tools_prefix|>[{{"get_weather": {ARGUMENTS}}}, {{"f": {{}}}}]<|tools_suffix|>',
            "",
            TWO,
        ),
        ("nemotron", f"<TOOLCALL>[{WEATHER}, {F}]</TOOLCALL>", "", TWO),
        ("hunyuan", f"\n<tool_calls>[{WEATHER},{F}]</tool_calls>", "", TWO),
        (
            "seed",
            "I look.\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Brno {"
            "</parameter>\n<parameter=days>[1, -2.5e3, null]</parameter>\n</function>\n"
            "</seed:tool_call>",
            "I look.",
            ONE,
        ),
        (
            "step3",
            "I look.<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
            '<steptml:invoke name="get_weather"><steptml:parameter name="city">Brno {'
            '</steptml:parameter><steptml:parameter name="days">[1, -2.5e3, null]'
            "</steptml:parameter></steptml:invoke>"
            "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
            "I look.",
            ONE,
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city='Brno {', days=[1, -2.5e3, None]), f()]"
            "<|tool_call_end|>I look.",
            "I look.",
            TWO,
        ),
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
    parser = AnswerParser(None, Start.BEGINNING, STYLES["hermes"], TOOLS, eager=True)
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
        (
            "deepseek-v3.2",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="a" string="no">1',
        ),
        ("deepseek-v3.2", '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a">1'),
        ("command-r", 'Action: ```json\n[{"tool_name": "directly_answer", "parameters": {}}]\n```'),
        ("command-r", "Action: ```python\nf()\n```"),
        ("json", "[1, 2, 3]"),
        ("gemma", "<|tool_call>call:no{}<tool_call|>"),
        ("gemma", "<|tool_call>f{}"),
        ("gemma", "<|tool_call>call:f{a}"),
        ("gemma", "<|tool_call>call:f{[a]:1}"),
        ("gemma", "<|tool_call>call:f{:1}"),
        ("gemma", "<|tool_call>call:f{,a:1}"),
        ("cohere", '<|START_ACTION|>[{"name": "f", "parameters": {}}]<|END_ACTION|>'),
        ("apertus", '<|tools_prefix|>[{"no": {}}]'),
        ("apertus", '<|tools_prefix|>[{"f": []}]'),
        ("step3", "<｜tool_call_begin｜>code<｜tool_sep｜>"),
        ("lfm2", "<|tool_call_start|>f()"),
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
    ("arguments", "begun"),
    [
        ("a:}", '{"a": '),
        ("a:1 b:2", '{"a": '),
        ("a:1]", '{"a": 1'),
        ('a:<|"|>x}<tool_call|>', '{"a": "x}<tool_call|>'),
        ("a:[1,,", '{"a": [1, '),
        ("a:" + "[" * 200, None),
    ],
)
def test_quoted_values_that_break(arguments: str, begun: str | None) -> None:
    text = f"<|tool_call>call:f{{{arguments}"
    for pieces in ([text], list(text)):
        assert parse(pieces, "gemma") == ("", text, [])
        _, content, [(name, read)] = parse(pieces, "gemma", eager=True)
        assert name == "f"
        assert begun is None or (read == begun and arguments.endswith(content))


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
        found = parse(pieces, None, reasoning="think", inside=inside)
        assert found == (reasoning, content, [])


@pytest.mark.parametrize(
    ("style", "text", "reasoning", "content"),
    [
        ("gemma", "<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ("gemma", "<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ("seed", "<seed:think>Hm.</seed:think>\nYes.", "Hm.", "Yes."),
        ("apertus", "<|inner_prefix|>Hm.<|inner_suffix|>Yes.", "Hm.", "Yes."),
        (
            "cohere",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes. <|END_RESPONSE|>",
            "Hm.",
            "Yes.",
        ),
        ("cohere", "<|START_RESPONSE|>Yes.", "", "Yes."),
        ("cohere", "Yes.<|END_RESPONSE|>", "", "Yes.<|END_RESPONSE|>"),
        ("hunyuan", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),
        ("hunyuan", "<think></think>Yes. <answer>", "", "Yes. <answer>"),
        ("hunyuan", "<think></think><answer>a < b</ans", "", "a < b</ans"),
        ("hunyuan", "<think></think><answer>a</answer> b", "", "a b"),
        ("ernie", "<think>Hm.</think>\n\n\n<response>\nYes.\n</response>\n", "Hm.", "Yes."),
    ],
)
def test_marks_of_reasoning_and_answers(
    style: str, text: str, reasoning: str, content: str
) -> None:
    for pieces in ([text], list(text)):
        assert parse(pieces, None, reasoning=style) == (reasoning, content, [])


def test_calls_inside_reasoning_are_thoughts() -> None:
    text = f"<think><tool_call>{F}</tool_call></think>\n<tool_call>{WEATHER}</tool_call>"
    assert parse([text], "hermes", reasoning="think") == (f"<tool_call>{F}</tool_call>", "", ONE)


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
        *("<|tool_call>", "<tool_call|>", "call:f{", "a:", '<|"|>', "<escape>", ":", "<TOOLCALL>"),
        *("<start_function_call>", "<end_function_call>", "<|python_start|>", "<|python_end|>"),
        *("<|START_ACTION|>", '{"tool_name": "f", "parameters": ', "<|tools_prefix|>", '{"f": '),
        *("<seed:tool_call>", "<tool_calls>", "<|tool_call_start|>", "<｜tool_call_begin｜>"),
        *("<｜tool_sep｜>", '<steptml:invoke name="f">', "</steptml:invoke>", "</TOOLCALL>"),
        *("<|channel|>", "<|message|>", "<|end|>", "to=functions.f", "final", "analysis"),
        *("<answer>", "</answer>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<response>"),
        *("<|channel>thought", "<channel|>", "<seed:think>", "</seed:think>", "</response>"),
        *("[", "]", ",", ";", "{", "f", "[ARGS]", " ", "\n", "\u2003", "text", "<", "</t", "1.5"),
    ]
)


@given(
    text=st.lists(FRAGMENTS, max_size=10).map("".join),
    cuts=st.lists(st.integers(0, 400), max_size=30),
    style=st.sampled_from([None, *STYLES]),
    eager=st.booleans(),
    single=st.booleans(),
    reasoning=st.sampled_from([None, *REASONING]),
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
    if not how["reasoning"] and not calls and style != "harmony":
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
        tools, reasoning = styles.tools, styles.reasoning
        return (
            None if tools is None else tools.name,
            None if reasoning is None else reasoning.name,
        )

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
    dsml = "{{ tools }}{% set token = '｜DSML｜' %}"
    assert found(dsml + "<{{ token }}function_calls></think>") == ("deepseek-v3.2", "think")
    assert found(dsml + "{{ message.tool_calls }}<{{ token }}tool_calls>")[0] == "deepseek-v4"
    asked = "{{ tools }}Write 'Action:' followed by a json-formatted list of actions that"
    assert found(asked) == ("command-r", None)
    assert found("<|im_system|>tool_declare<|im_middle|>{{ tools }}") == ("kimi", None)
    assert found("{{ tools }}<|tool_call|>{{ call }}<|/tool_call|>") == ("phi4", None)
    assert found("{{ tools }}<|tool_call|>{{ calls }}") == ("granite", None)
    assert found(v31.replace("tools", "messages")) == ("generic", None)
    assert found("{{ tools }}<|start|><|channel|>analysis<|message|>") == ("harmony", "harmony")
    assert found("{{ tools }}'<|tool_call>call:' <|channel>thought<channel|>") == ("gemma", "gemma")
    assert found("{{ tools }}<start_function_call>call:") == ("functiongemma", None)
    assert found('{{ tools }}<|header_start|>ipython"parameters": ') == ("llama4", None)
    assert found("{{ tools }}<|header_start|>[func_name1(a=b)]") == ("llama4-pythonic", None)
    assert found("{{ tools }}<|START_ACTION|>tool_name<|END_THINKING|><|START_RESPONSE|>") == (
        "cohere",
        "cohere",
    )
    assert found("{{ tools }}<seed:tool_call><function=</seed:think>") == ("seed", "seed")
    assert found("{{ tools }}<TOOLCALL></think>") == ("nemotron", "think")
    assert found("{{ tools }}<tool_calls></think><answer>") == ("hunyuan", "hunyuan")
    assert found("{{ tools }}<tool_call></think><response>") == ("hermes", "ernie")
    assert found("{{ tools }}<|tools_prefix|><|inner_suffix|>") == ("apertus", "apertus")
    assert found("{{ tools }}<steptml:invoke<｜tool_call_begin｜>") == ("step3", None)
    assert found("{{ tools }}<|tool_call_start|>") == ("lfm2", None)
    listed = {"default": "List of tools: {{ tools }}"}
    assert Styles.choose("auto", "auto", listed).tools is None
    in_vocabulary = Styles.choose("auto", "auto", listed, {"<|tool_call_start|>"}.__contains__)
    assert in_vocabulary.tools is not None
    assert in_vocabulary.tools.name == "lfm2"
    assert found("tools[AVAILABLE_TOOLS][TOOL_CALLS][THINK][/THINK]") == ("mistral", "mistral")
    assert found('tools {"name": , "parameters": } ipython') == ("llama3", None)
    chosen = Styles.choose("json", "none", {"default": "<tool_call></think>"})
    assert chosen.tools is STYLES["json"]
    assert chosen.reasoning is None
    assert str(chosen) == "tool calls: json, reasoning: none"
    with pytest.raises(ConfigError, match="--tool-call-parser 'x'"):
        Styles.choose("x", "auto", {})
