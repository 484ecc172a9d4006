"""Grammar rules of calls whose arguments are tagged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.parsing.calls.tagged_values import types_of
from penstock.parsing.forms import TagForm
from penstock.parsing.grammars.marks import Marks
from penstock.parsing.grammars.schemas import ANY_KEY, bound_value, definitions_of, properties_of
from penstock.parsing.grammars.texts import text_rules

_TEXT = frozenset(["string"])


def tag_rules(
    form: TagForm, i: int, name: str, schema: Mapping[str, Any], marks: Marks
) -> list[str]:
    """Rules for a call of function ``i``, the first of which is ``call_<i>``.

    Arguments come in the order of the schema's properties. Each is bound by its own schema; texts,
    which are written without quotes, by their lengths, patterns and choices. What a schema says
    of several arguments together is not bound.
    """
    head = marks.spelled(*form.before, form.before_name, name, form.after_name)
    definitions = definitions_of(schema)
    properties, required = properties_of(schema)
    parts, rules = [], []
    for j, (key, of_key) in enumerate(properties.items()):
        rule = f"argument_{i}_{j}"
        after = form.behind_key(types_of(of_key) == _TEXT)
        opening = marks.spelled(form.before_key, key, after, form.before_value)
        rules += _argument(rule, opening, of_key, form, definitions, marks)
        parts.append(rule if key in required else f"{rule}?")
    if not properties and schema.get("additionalProperties") is not False:
        rule = f"argument_{i}"
        after = marks.spelled(form.behind_key(False), form.before_value)
        opening = f"{marks.spelled(form.before_key)} /{ANY_KEY}/ {after}"
        rules += _argument(rule, opening, {}, form, definitions, marks)
        parts.append(f"{rule}*")
    return [f"call_{i}: {head} {' '.join(parts)} {marks.spelled(form.end)}", *rules]


def _argument(
    rule: str,
    opening: str,
    schema: Any,
    form: TagForm,
    definitions: Mapping[str, Any],
    marks: Marks,
) -> list[str]:
    """The rule of one argument, with those that it needs."""
    if types_of(schema) == _TEXT:
        return text_rules(rule, schema, opening, form.after_value, marks)
    text = json.dumps(bound_value(schema, definitions))
    closing = marks.spelled(form.after_value)
    return [f"{rule}: {opening} {rule}_value {closing}", f"{rule}_value: %json {text}"]
