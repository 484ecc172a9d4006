"""Answers in messages for channels, as gpt-oss writes them: read, bound by grammars, told again."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import byte_tokenizer
from support.drawn_texts import drawn, spelled, tokenizers

from penstock.grammar.spec import GrammarSpec
from penstock.parsing.answer_grammar import answer_grammar
from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.asked_calls import Calls, Function
from penstock.parsing.history import as_template_reads
from penstock.parsing.known_styles import REASONING_STYLES, TOOL_STYLES
from penstock.parsing.marks import has_special_marks, start_behind
from penstock.parsing.style import Start
from penstock.tokenizer import load_tokenizer

TOOLS: dict[str, Any] = {"get_weather": {}, "f": {}}
REASONING, STYLE = REASONING_STYLES[0], TOOL_STYLES[0]
MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "additionalProperties": False,
}
FUNCTIONS = [Function("get_weather", CITY, "tools[0]"), Function("f", {"type": "object"}, "")]

Answer = tuple[str, str, list[tuple[str, str]]]
"""Reasoning, content, and calls: name and arguments."""


def parse(
    pieces: list[str],
    *,
    start: Start = Start.BEGINNING,
    eager: bool = False,
    single: bool = False,
    reasoning: bool = True,
    tools: bool = True,
) -> Answer:
    parser = AnswerParser(
        REASONING if reasoning else None,
        start,
        STYLE if tools else None,
        TOOLS,
        eager=eager,
        single=single,
    )
    found = parser.push("")
    for delta in (*map(parser.push, pieces), parser.finish()):
        found.add(delta)
    return found.reasoning, found.content, [(c.name or "", c.arguments) for c in found.calls]


SF = '{"location":"San Francisco"}'
CALL = f"commentary to=functions.get_weather <|constrain|>json<|message|>{SF}<|call|>"


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<|channel|>analysis<|message|>User asks: "What is 2 + 2?" Simple arithmetic. Provide '
            "answer.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>",
            (
                'User asks: "What is 2 + 2?" Simple arithmetic. Provide answer.',
                "2 + 2 = 4.",
                [],
            ),
        ),
        (
            "<|channel|>analysis<|message|>Need to use function get_weather.<|end|>"
            f"<|start|>assistant<|channel|>{CALL}",
            ("Need to use function get_weather.", "", [("get_weather", SF)]),
        ),
        (
            "<|channel|>analysis<|message|>Plan.<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>**Action plan**:\n1. Look\n---\nGo<|end|><|start|>assistant<|channel|>"
            'commentary to=functions.f<|constrain|>json<|message|>{"a": "<b>"}',
            ("Plan.", "**Action plan**:\n1. Look\n---\nGo", [("f", '{"a": "<b>"}')]),
        ),
        # What the template writes: the receiver before the channel, the type without a mark.
        (
            f" to=functions.get_weather<|channel|>commentary json<|message|>{SF}<|call|>",
            ("", "", [("get_weather", SF)]),
        ),
        (
            f"<|start|>assistant<|channel|>{CALL}<|start|>assistant<|channel|>analysis"
            "<|message|>More.<|end|>\n<|start|>assistant to=functions.f<|channel|>commentary"
            "<|message|> {}",
            ("More.", "", [("get_weather", SF), ("f", "{}")]),
        ),
        (f"<|channel|>analysis to=get_weather code<|message|>{SF}<|call|>",
         ("", "", [("get_weather", SF)])),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>"
            "b<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
            "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
            ("a\n\nb", "c\n\n{}", []),
        ),
        # Ends that are missing, and headers without their beginning.
        ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", ("a", "b", [])),
        ("<|message|>a<|end|>assistant<|channel|>final<|message|>b", ("", "a\n\nb", [])),
        ("<|channel|>analysis<|message|>Hm", ("Hm", "", [])),
        ("<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|chan", ("Hm", "", [])),
        ("<|channel|>final<|message|>1 < 2 <|e", ("", "1 < 2 <|e", [])),
        ("Just text, 1 < 2.\n", ("", "Just text, 1 < 2.\n", [])),
        ("assistants write <this>", ("", "assistants write <this>", [])),
    ],
)  # fmt: skip
def test_recorded_answers(text: str, expected: Answer, eager: bool) -> None:
    for pieces in ([text], list(text), [text[:7], text[7:40], text[40:]]):
        assert parse(pieces, eager=eager) == expected


PYTHON = "<|channel|>analysis to=python code<|message|>print(1)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PYTHON, (PYTHON, "", [])),
        (
            "<|channel|>commentary to=functions.no<|message|>{}",
            ("", "<|channel|>commentary to=functions.no<|message|>{}", []),
        ),
        (
            f"<|channel|>{CALL.replace('}', ', x}')}",
            ("", f"<|channel|>{CALL.replace('}', ', x}').removesuffix('<|call|>')}", []),
        ),
        ("<|start|>user<|message|>Hi<|end|>", ("", "<|start|>user<|message|>Hi", [])),
        ("<|channel|>!?<|message|>Hi", ("", "<|channel|>!?<|message|>Hi", [])),
    ],
)
def test_what_is_no_call_keeps_its_header(text: str, expected: Answer) -> None:
    for pieces in ([text], list(text)):
        assert parse(pieces) == expected


def test_calls_that_nobody_asked_for_are_content() -> None:
    text = f"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>{CALL}"
    thought, content, calls = parse([text], tools=False)
    assert (thought, calls) == ("a", [])
    assert SF in content
    assert parse([text], reasoning=False) == ("", "a", [("get_weather", SF)])


def test_the_first_call_ends_an_answer_of_one() -> None:
    text = f"<|channel|>{CALL}<|start|>assistant<|channel|>{CALL}"
    assert len(parse([text])[2]) == 2
    assert len(parse([text], single=True)[2]) == 1


def test_arguments_come_while_they_are_written() -> None:
    parser = AnswerParser(REASONING, Start.BEGINNING, STYLE, TOOLS, eager=True)
    head, _, _ = f"<|channel|>{CALL}".partition("San")
    found = parser.push(head)
    assert [(c.name, c.arguments) for c in found.calls] == [("get_weather", '{"location":"')]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(Start.REASONING, ("on", "", [])), (Start.CONTENT, ("", "on", []))],
)
def test_answers_that_go_on(start: Start, expected: Answer) -> None:
    assert parse(["o", "n"], start=start) == expected
    told = parse(["on<|end|><|start|>assistant<|channel|>final<|message|>x"], start=start)
    assert told[0] + told[1] in ("onx", "on\n\nx")


FRAGMENTS = st.sampled_from(
    [
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
        *("<|return|>", "assistant", "user", "analysis", "commentary", "final", " to=", "json"),
        *("functions.f", "f", "python", " ", "\n", '{"a": ', '"x<|end|>"', "1", "{}", "}", "text"),
        *("<", "<|", "<|e", "|>", ".", "to", "\u2003"),
    ]
)


@given(
    text=st.lists(FRAGMENTS, max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    start=st.sampled_from(Start),
    eager=st.booleans(),
    single=st.booleans(),
    reasoning=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_where_the_text_is_cut_does_not_matter(text: str, cuts: list[int], **how: Any) -> None:
    marks = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(marks)]
    whole = parse([text], **how)
    assert parse(pieces, **how) == whole
    assert parse(list(text), **how) == whole
    for _, arguments in whole[2]:
        if not how["eager"]:
            assert isinstance(json.loads(arguments), dict)


@given(st.text(st.characters(exclude_characters="<"), min_size=1).filter(str.strip))
def test_text_without_marks_is_content(text: str) -> None:
    assert parse(list(text)) == ("", text, [])


def allowed(grammar: GrammarSpec, special: tuple[str, ...], text: str) -> bool:
    """Whether a grammar lets all of a text through, and lets it end there."""
    own, theirs = tokenizers(special)
    compiled = llguidance.LLMatcher.grammar_from_lark(grammar.text)
    matcher = llguidance.LLMatcher(theirs, compiled)
    assert not matcher.is_error(), matcher.get_error()
    tokens = [
        token for part in re.split(r"(<\|\w+\|>)", text) if part for token in spelled(own, part)
    ]
    return bool(matcher.validate_tokens(tokens) == len(tokens)) and (
        matcher.consume_tokens(tokens) and matcher.is_accepting()
    )


THOUGHT = "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant"
HEAD = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize("special", [MARKS, ()], ids=["special", "text"])
def test_what_grammars_let_through(special: tuple[str, ...]) -> None:
    own, _ = tokenizers(special)
    schema = GrammarSpec(kind="json_schema", text='{"const": 5}')

    def grammar(forced: bool | None, content: GrammarSpec | None, start: Start) -> GrammarSpec:
        calls = None if forced is None else Calls(STYLE, FUNCTIONS, forced=forced, single=False)
        return answer_grammar(own, REASONING, start, calls, content)

    call = HEAD + '{"city": "Brno"}'
    forced = grammar(True, None, Start.BEGINNING)
    assert allowed(forced, special, THOUGHT * 2 + call)
    assert allowed(forced, special, THOUGHT.replace("analysis", "commentary") + call)
    for text in (FINAL + "x", HEAD + '{"city": 5}', call.replace("get_weather", "no"), "x"):
        assert not allowed(forced, special, text)
    free = grammar(False, None, Start.BEGINNING)
    for text in (THOUGHT + FINAL + "x <b>", FINAL, THOUGHT + call):
        assert allowed(free, special, text)
    asked = grammar(None, schema, Start.BEGINNING)
    assert allowed(asked, special, THOUGHT + FINAL + "5")
    assert not allowed(asked, special, THOUGHT + FINAL + "6")
    assert not allowed(asked, special, "5")
    assert allowed(grammar(False, schema, Start.BEGINNING), special, call)
    assert allowed(grammar(None, schema, Start.CONTENT), special, "5")
    inside = "on." + THOUGHT.partition("I think.")[2] + FINAL + "5"
    assert allowed(grammar(None, schema, Start.REASONING), special, inside)
    assert allowed(grammar(True, None, Start.REASONING), special, inside[: -len(FINAL) - 1] + call)
    assert not allowed(grammar(True, None, Start.CONTENT), special, "on.")
    if special:
        assert allowed(forced, special, call.replace(" <|constrain|>json", ""))
        assert allowed(asked, special, FINAL.replace("<|m", " <|constrain|>json<|m") + "5")


def test_what_grammars_let_through_is_read() -> None:
    own, _ = tokenizers(MARKS)
    tools = {function.name: function.schema for function in FUNCTIONS}
    called = 0
    for forced, seed in itertools.product((True, False), range(12)):
        calls = Calls(STYLE, FUNCTIONS, forced=forced, single=False)
        grammar = answer_grammar(own, REASONING, Start.BEGINNING, calls, None)
        text = drawn(grammar, MARKS, seed, closing="<|end|>")
        if text is None:
            continue
        parser = AnswerParser(REASONING, Start.BEGINNING, STYLE, tools, eager=False)
        found = parser.push(text)
        found.add(parser.finish())
        assert found.calls or not forced, text
        for call in found.calls:
            json.loads(call.arguments)
        assert "<|message|>" not in found.content
        called += bool(found.calls)
    assert called > 6


def test_where_prompts_end(tmp_path: Any) -> None:
    tokenizer = load_tokenizer(byte_tokenizer.write(tmp_path))
    assert not has_special_marks(tokenizer, REASONING, STYLE)
    told = "<|start|>user<|message|><|channel|>analysis<|message|><|end|><|start|>assistant"
    for text, start in (
        (told, Start.BEGINNING),
        (told + "<|channel|>analysis<|message|>So", Start.REASONING),
        (told + "<|channel|>final<|message|>The", Start.CONTENT),
        (told + "<|channel|>commentary<|message|>I'll", Start.CONTENT),
        ("", Start.BEGINNING),
    ):
        for styles in ((REASONING, STYLE), (None, STYLE), (REASONING, None)):
            assert start_behind(tokenizer, tokenizer.encode(text), *styles) is start


def call(*names: str, **said: str) -> dict[str, Any]:
    calls = [{"id": n, "type": "function", "function": {"name": n, "arguments": {}}} for n in names]
    return {"role": "assistant", "content": "", **said, "tool_calls": calls}


def result(name: str, text: str = "") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": text}


def test_earlier_calls_come_one_by_one() -> None:
    hi = {"role": "user", "content": "Hi"}
    system, developer = ({"role": r, "content": r} for r in ("system", "developer"))
    messages = [
        *(system, developer, hi),
        *(call("f", "g", content="I look.", reasoning_content="Hm."), result("g"), result("f")),
        *(call("h", reasoning_content="So."), result("h"), result("lost")),
        {"role": "assistant", "content": "Done.", "reasoning_content": "Yes."},
    ]
    told = as_template_reads(messages, STYLE, "{{ message.thinking }}")
    assert told[0] == {"role": "system", "content": "system\n\ndeveloper"}
    assert told[1] is hi
    names = [m["tool_calls"][0]["id"] if "tool_calls" in m else m.get("tool_call_id") for m in told]
    assert names[2:] == ["f", "f", "g", "g", "h", "h", "lost", None]
    assert [m.get("thinking") for m in told[2:8:2]] == ["Hm.\n\nI look.", "", "So."]
    assert told[-1]["thinking"] == "Yes."
