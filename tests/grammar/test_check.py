"""What is refused before it is queued: with the field's name and a reason, in bounded time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.grammars import FINITE, Language

from penstock.errors import RequestError
from penstock.grammar.notation import MAX_CHARS, MAX_CHOICES, MAX_DEPTH
from penstock.grammar.spec import GrammarSpec, Kind
from penstock.sandbox.jobs import Checked, CheckGrammar
from penstock.sandbox.local import LocalWorker

Check = Callable[[GrammarSpec], None]


def spec(kind: Kind, text: str) -> GrammarSpec:
    return GrammarSpec(kind=kind, text=text)


@pytest.fixture(scope="module")
def worker() -> Iterator[LocalWorker]:
    worker = LocalWorker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def check(worker: LocalWorker) -> Check:
    """As front ends do it: in a worker process, which the worst of these end."""

    def check(spec: GrammarSpec) -> None:
        answer = worker.run(CheckGrammar.of(spec))
        assert isinstance(answer, Checked)
        if answer.fault is not None:
            raise RequestError(answer.fault, "grammar")

    return check


def schema(value: Any) -> GrammarSpec:
    return spec("json_schema", json.dumps(value))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        value = {"items": value}
    return value


@pytest.mark.parametrize("language", FINITE, ids=lambda each: each.spec.kind)
def test_good_grammars_pass(check: Check, language: Language) -> None:
    check(language.spec)


def test_any_object_passes(check: Check) -> None:
    check(GrammarSpec(kind="json_object"))
    check(spec("json_schema", " true "))
    check(spec("json_schema", "{}"))
    check(schema(nested(MAX_DEPTH - 1)))


BAD = {
    "no JSON": (spec("json_schema", '{"type": '), "not JSON"),
    "no schema": (schema([1]), "is an object"),
    "never": (schema(False), "is an object"),
    "empty": (schema({"type": "string", "minLength": 5, "maxLength": 3}), "greater than maxLength"),
    "unknown type": (schema({"type": "objekt"}), "objekt"),
    "unknown keyword": (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    "not": (schema({"not": {"type": "string"}}), '"not"'),
    "remote": (schema({"items": {"$ref": "https://example.com/a.json"}}), "never fetched"),
    "file": (schema({"$ref": "file:///etc/passwd"}), "never fetched"),
    "nowhere": (schema({"$ref": "#/$defs/a"}), "does not exist"),
    "too deep": (schema(nested(MAX_DEPTH + 1)), "deep"),
    "very deep": (spec("json_schema", '{"items":' * 30_000 + "{}" + "}" * 30_000), "characters"),
    "deep brackets": (spec("json_schema", "[" * 100_000), "not JSON"),
    "too long": (schema({"enum": ["x" * MAX_CHARS]}), "characters"),
    "products": (
        schema(
            {
                "allOf": [
                    {
                        "anyOf": [
                            {"properties": {f"a{i}": {"type": "integer"}}, "required": [f"a{i}"]},
                            {"properties": {f"b{i}": {"type": "string"}}, "required": [f"b{i}"]},
                        ]
                    }
                    for i in range(20)
                ]
            }
        ),
        "too large",
    ),
    "open group": (spec("regex", "a(b"), "unclosed group"),
    "look-around": (spec("regex", "(?=a)b"), "look-around"),
    "no regex": (spec("regex", ""), "is empty"),
    "many brackets": (spec("regex", "(" * 50_000 + ")" * 50_000), "cannot be used"),
    "powers": (spec("regex", "((a{1000}){1000}){1000}b("), "cannot be used"),
    "null": (spec("regex", "a\0b"), "null character"),
    "surrogate": (spec("regex", "a\ud800b"), "lone surrogate"),
    "no grammar": (spec("lark", " "), "is empty"),
    "no colon": (spec("lark", "hello"), "Expected token"),
    "no rule": (spec("lark", "start: missing"), "missing"),
    "deep grammar": (spec("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000), "deeply nested"),
    "no choices": (spec("choice", "[]"), "must be choices"),
    "an empty choice": (spec("choice", '["a", ""]'), "may be empty"),
    "no strings": (spec("choice", "[1]"), "no list of strings"),
    "many choices": (spec("choice", json.dumps(["x"] * (MAX_CHOICES + 1))), "may be"),
    "unknown kind": (GrammarSpec(kind="ebnf", text="a"), "no kind of grammar"),  # type: ignore
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD.keys())
def test_bad_grammars_are_refused(check: Check, bad: GrammarSpec, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check(bad)
    assert message in str(caught.value)
    assert caught.value.param == "grammar"
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_patterns_that_take_for_ever_are_given_up(check: Check) -> None:
    value = {"allOf": [{"type": "string", "pattern": f".*a.{{{i * 13}}}b.*"} for i in range(1, 20)]}
    before = os.times()
    with pytest.raises(RequestError, match="processor time"):
        check(schema(value))
    after = os.times()
    assert after.children_user - before.children_user < 30


@pytest.mark.parametrize(
    "big",
    [
        schema({"enum": [f"value {i}" for i in range(5000)]}),
        schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**6}),
        schema({"properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
        spec("regex", "(((a{1000}){1000}){1000}){1000}"),
        spec("regex", "(.*a.{2000}b)|(.*c.{3000}d)"),
        spec("choice", json.dumps([f"choice {i}" for i in range(MAX_CHOICES)])),
        spec("lark", 'start: a\na: "x" | a a | a a a'),
    ],
    ids=["enum", "array", "object", "powers", "distances", "choices", "ambiguous"],
)
def test_large_grammars_are_no_trouble(check: Check, big: GrammarSpec) -> None:
    before = os.times()
    check(big)
    after = os.times()
    assert after.user - before.user + after.children_user - before.children_user < 20


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (spec("regex", "ab\\"), "ends with a backslash"),
        (spec("regex", "ab\\\\\\"), "ends with a backslash"),
        (spec("lark", "start: a\na[temperature=0.0]: /[a-z ]*/"), "a temperature of its own"),
        (
            spec("lark", "start: a\na [max_tokens=3, temperature=1]: /x+/"),
            "a temperature of its own",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(
    check: Check, grammar: GrammarSpec, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        check(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        spec("regex", "ab\\\\"),
        spec("lark", 'start: "[temperature=1]" a\na[max_tokens=3]: /[a-z]+/'),
    ],
)
def test_what_only_looks_like_it_is_not(check: Check, grammar: GrammarSpec) -> None:
    check(grammar)
