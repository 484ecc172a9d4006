"""Text that is no valid call stays content, to the last character."""

from __future__ import annotations

import pytest
from support.parsed_answers import ONE, WEATHER, parse


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
