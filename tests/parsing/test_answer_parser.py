"""Outputs are split into reasoning, content and calls, wherever their text is cut into pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parsed_answers import ARGUMENTS, ONE, REASONING, STYLES, WEATHER, F, parse


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
