"""Grammar rules of calls with texts between quotes of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.parsing.forms import ValueForm
from penstock.parsing.grammars.marks import Marks
from penstock.parsing.grammars.schemas import ANY_KEY, count_of, in_commas, properties_of
from penstock.parsing.grammars.texts import text_rules

_OF_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COMMA: Final = ' "," '
_BARE_KEY: Final = re.compile(r"[^\s{}\[\],:<>\"](?:[^\n{}\[\],:<>\"]*[^\s{}\[\],:<>\"])?")


def value_rules(
    form: ValueForm, i: int, name: str, schema: Mapping[str, Any], marks: Marks
) -> list[str]:
    """Rules for a call of function ``i``, the first of which is ``call_<i>``.

    Members of objects come with the required ones first, each group in the order of the schema's
    properties. Each value is bound by its own schema, by what it says of types, choices, numbers,
    texts and how many items there are, and by what that refers to; what a schema says of several
    values together is not bound.
    """
    writer = _Writer(form, i, schema, marks)
    arguments = writer.of_object(schema)
    head = marks.spelled(form.before_name, name)
    return [f"call_{i}: {head} {arguments}", *writer.rules]


def any_value_rules(form: ValueForm, marks: Marks) -> list[str]:
    """The rules that those of all calls share."""
    quote = marks.spelled(form.quote)
    return [
        'any_value: any_text | any_number | "true" | "false" | "null" | any_list | any_object',
        'any_list: "[" (any_value ("," any_value)*)? "]"',
        'any_object: "{" (any_member ("," any_member)*)? "}"',
        f'any_member: /{ANY_KEY}/ ":" any_value',
        'any_number: %json {"type": "number"}',
        *text_rules("any_text", {}, quote, form.quote, marks),
    ]


class _Writer:
    """Writes the rules of one function, a rule a line."""

    def __init__(self, form: ValueForm, i: int, root: Mapping[str, Any], marks: Marks) -> None:
        self.rules: list[str] = []
        self._quote = form.quote
        self._marks = marks
        self._root = root
        self._i = i
        self._count = 0
        self._referred: dict[str, str] = {}  # rules by what refers to their schemas

    def of_object(self, schema: Mapping[str, Any]) -> str:
        properties, required = properties_of(schema)
        members = {key: self._member(key, each) for key, each in properties.items()}
        needed = [rule for key, rule in members.items() if key in required]
        others = [rule for key, rule in members.items() if key not in required]
        body = in_commas(needed, others, '","')
        more = schema.get("additionalProperties")
        if not properties and more is not False:
            member = self._rule(f'/{ANY_KEY}/ ":" {self._value(more)}')
            body = f'({member} ("," {member})*)?'
        return f'"{{" {body} "}}"'

    def _member(self, key: str, schema: Any) -> str:
        name = json.dumps(f"{key}:")
        if not _BARE_KEY.fullmatch(key):
            quote = self._marks.spelled(self._quote)
            name = f'{quote} {json.dumps(key)} {quote} ":"'
        return self._rule(f"{name} {self._value(schema)}")

    def _value(self, schema: Any) -> str:
        """What stands for a value in rules."""
        if not isinstance(schema, Mapping):
            return "any_value"
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]))
        if "const" in schema:
            return self._written(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return f"({' | '.join(map(self._written, schema['enum']))})"
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return f"({' | '.join(map(self._value, schema[key]))})"
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            names = dict.fromkeys(each for each in kind if isinstance(each, str))
            return f"({' | '.join(self._typed(each, schema) for each in names) or 'any_value'})"
        return self._typed(kind, schema)

    def _typed(self, kind: object, schema: Mapping[str, Any]) -> str:
        match kind:
            case "string":
                rule = self._name()
                quote = self._marks.spelled(self._quote)
                self.rules += text_rules(rule, schema, quote, self._quote, self._marks)
                return rule
            case "integer" | "number":
                bounds = {key: schema[key] for key in _OF_NUMBERS if key in schema}
                return self._rule(f"%json {json.dumps({'type': kind, **bounds})}")
            case "boolean":
                return '("true" | "false")'
            case "null":
                return '"null"'
            case "array":
                return self._rule(self._list(schema))
            case "object":
                return self._rule(self.of_object(schema))
            case _:
                return "any_value"

    def _list(self, schema: Mapping[str, Any]) -> str:
        least, most = count_of(schema, "minItems") or 0, count_of(schema, "maxItems")
        if most == 0:
            return '"[" "]"'
        item = self._value(schema.get("items"))
        last = "" if most is None else max(most, least) - 1
        items = f'{item} ("," {item}){{{max(least, 1) - 1},{last}}}'
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _reference(self, pointer: str) -> str:
        if pointer not in self._referred:
            self._referred[pointer] = rule = self._name()
            self.rules.append(f"{rule}: {self._value(_found(self._root, pointer))}")
        return self._referred[pointer]

    def _written(self, value: Any) -> str:
        """A value as calls have it."""
        if isinstance(value, str):
            quote = self._marks.spelled(self._quote)
            return f"{quote} {json.dumps(value)} {quote}" if value else f"{quote} {quote}"
        if isinstance(value, list):
            items = _COMMA.join(map(self._written, value))
            return f'"[" {items} "]"'
        if isinstance(value, Mapping):
            pairs = (f"{json.dumps(f'{k}:')} {self._written(v)}" for k, v in value.items())
            return f'"{{" {_COMMA.join(pairs)} "}}"'
        return json.dumps(json.dumps(value))

    def _rule(self, body: str) -> str:
        rule = self._name()
        self.rules.append(f"{rule}: {body}")
        return rule

    def _name(self) -> str:
        self._count += 1
        return f"value_{self._i}_{self._count}"


def _found(root: Any, pointer: str) -> Any:
    """What a reference within a schema leads to; None where there is nothing."""
    if not pointer.startswith("#"):
        return None
    for part in pointer[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, Mapping) else None
    return root
