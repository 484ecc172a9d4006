"""Grammar rules of calls whose arguments are tagged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from penstock.parsing.tag_form import TagForm
from penstock.parsing.tagged_values import types_of

_KEY = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
"""Arguments that a schema does not name."""
_DEFINITIONS = ("$defs", "definitions")


def tag_rules(
    form: TagForm, i: int, name: str, schema: Mapping[str, Any], whitespace: Mapping[str, Any]
) -> list[str]:
    """Rules for a call of function ``i``, the first of which is ``call_<i>``.

    Arguments come in the order of the schema's properties. Each is bound by its own schema; texts,
    which are written without quotes, by their lengths, patterns and choices. What a schema says
    of several arguments together is not bound. ``whitespace`` are llguidance's options for JSON.
    """
    head = json.dumps(f"{form.before_name}{name}{form.after_name}")
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    properties = schema.get("properties") or {}
    required = set(schema.get("required") or [])
    properties = {**properties, **{key: {} for key in sorted(required - set(properties))}}
    parts, rules = [], []
    for j, (key, of_key) in enumerate(properties.items()):
        rule = f"argument_{i}_{j}"
        opening = f"{form.before_key}{key}{form.after_key}{form.before_value}"
        rules += _argument(rule, json.dumps(opening), of_key, form, definitions, whitespace)
        parts.append(rule if key in required else f"{rule}?")
    if not properties and schema.get("additionalProperties") is not False:
        rule = f"argument_{i}"
        after = json.dumps(f"{form.after_key}{form.before_value}")
        opening = f"{json.dumps(form.before_key)} /{_KEY}/ {after}"
        rules += _argument(rule, opening, {}, form, definitions, whitespace)
        parts.append(f"{rule}*")
    return [f"call_{i}: {head} {' '.join(parts)} {json.dumps(form.end)}", *rules]


def _argument(
    rule: str,
    opening: str,
    schema: Any,
    form: TagForm,
    definitions: Mapping[str, Any],
    whitespace: Mapping[str, Any],
) -> list[str]:
    """The rule of one argument, with those that it needs."""
    closing = json.dumps(form.after_value)
    if types_of(schema) != {"string"}:
        of_value = {**schema, **definitions} if isinstance(schema, Mapping) else {}
        text = json.dumps({**of_value, "x-guidance": whitespace})
        return [f"{rule}: {opening} {rule}_value {closing}", f"{rule}_value: %json {text}"]
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if choices is not None:
        return [f"{rule}: {opening} ({' | '.join(map(json.dumps, choices))}) {closing}"]
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    terminal = f"{rule}_TEXT".upper()
    closes = _quoted(form.after_value)
    text = f"/(?s:.{{{least},{most}}}){closes}/"
    if "pattern" in schema:
        text += f" & /{_searched(schema['pattern'])}{closes}/"
    # A text is read up to the first mark of its end, so that it must be the only one.
    end = _quoted(form.after_value.strip())
    return [
        f"{rule}: {opening} {rule}_text",
        f"{rule}_text[lazy]: {terminal}",
        f"{terminal}: {text} & ~/(?s:.*){end}(?s:.*){end}(?s:.*)/",
    ]


def _quoted(text: str) -> str:
    """A pattern between slashes that matches ``text`` alone."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")


def _searched(pattern: str) -> str:
    """``pattern``, which may be found anywhere, for all of a text."""
    begin = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if re.search(r"(?<!\\)(\\\\)*\$$", pattern) else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner.removesuffix("$") if not end else inner
    return f"{begin}(?:{inner}){end}".replace("/", r"\/").replace("\\\\/", r"\/")
