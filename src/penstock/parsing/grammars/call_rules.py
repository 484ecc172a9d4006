"""Grammar rules of one call, without what is around it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.parsing.asked_calls import Function
from penstock.parsing.forms import (
    CallForm,
    JsonForm,
    KeyForm,
    NamedForm,
    PythonForm,
    TagForm,
    ValueForm,
)
from penstock.parsing.grammars.marks import Marks
from penstock.parsing.grammars.python_rules import python_rules
from penstock.parsing.grammars.schemas import AS_TEMPLATES_WRITE
from penstock.parsing.grammars.tag_rules import tag_rules
from penstock.parsing.grammars.value_rules import any_value_rules, value_rules


def call_rules(form: CallForm, functions: Sequence[Function], marks: Marks) -> list[str]:
    """The rule ``item``, which is a call of any of the ``functions``, and those that it needs."""
    rules: list[str] = []
    calls: list[str] = []
    for i, function in enumerate(functions):
        calls.append(f"call_{i}")
        match form:
            case JsonForm() | KeyForm():
                head = _json_head(form, function.name)
                rules += [f'call_{i}: {head} arguments_{i} "}}"', arguments_rule(i, function)]
            case NamedForm():
                head, end = _head(form, function.name, marks), marks.spelled(form.after_arguments)
                rules += [f"call_{i}: {head} arguments_{i} {end}", arguments_rule(i, function)]
            case TagForm():
                rules += tag_rules(form, i, function.name, function.schema, marks)
            case ValueForm():
                rules += value_rules(form, i, function.name, function.schema, marks)
            case PythonForm():
                rules += python_rules(i, function.name, function.schema)
    if isinstance(form, ValueForm):
        rules += any_value_rules(form, marks)
    return [f"item: {' | '.join(calls)}", *rules]


def arguments_rule(i: int, function: Function) -> str:
    """The rule ``arguments_<i>`` of the arguments as JSON."""
    schema = json.dumps({**function.schema, "x-guidance": AS_TEMPLATES_WRITE})
    return f"arguments_{i}: %json {schema}"


def _json_head(form: JsonForm | KeyForm, name: str) -> str:
    """What is before the arguments."""
    if isinstance(form, KeyForm):
        return json.dumps(f'{{"{name}": ')
    named = f'"{form.name_key}": "{name}", "{form.arguments_key}": '
    if not form.number_key:
        return json.dumps(f"{{{named}")
    number, behind = f'{{"{form.number_key}": "', f'", {named}'
    return f"{json.dumps(number)} /[0-9]{{1,3}}/ {json.dumps(behind)}"


def _head(form: NamedForm, name: str, marks: Marks) -> str:
    if not form.numbered:
        return marks.spelled(*form.before_name, name, *form.after_name)
    before, after = marks.spelled(*form.before_name, name), marks.spelled(*form.after_name)
    return f"{before} /:[0-9]{{1,3}}/ {after}"
