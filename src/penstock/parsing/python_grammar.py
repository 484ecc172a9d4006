"""Grammar rules of calls that are written as Python's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DEFINITIONS = ("$defs", "definitions")


def python_rules(
    i: int, name: str, schema: Mapping[str, Any], whitespace: Mapping[str, Any]
) -> list[str]:
    """Rules for a call of function ``i``, the first of which is ``call_<i>``.

    Required arguments come first, each group in the order of the schema's properties; others are
    not let through. Values are JSON, which is read beside Python's, each bound by its own schema.
    ``whitespace`` are llguidance's options for JSON.
    """
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    properties = schema.get("properties") or {}
    required = list(schema.get("required") or [])
    optional = [key for key in properties if key not in required]
    rules: list[str] = []
    names: dict[str, str] = {}
    for j, key in enumerate(dict.fromkeys([*required, *optional])):
        names[key] = rule = f"argument_{i}_{j}"
        of_value = properties.get(key, {})
        bound = {**of_value, **definitions} if isinstance(of_value, Mapping) else {}
        value = json.dumps({**bound, "x-guidance": whitespace})
        rules += [f"{rule}: {json.dumps(f'{key}=')} {rule}_value", f"{rule}_value: %json {value}"]
    needed = ' ", " '.join(names[key] for key in dict.fromkeys(required))
    others = [names[key] for key in optional]
    if needed:
        body = " ".join([needed, *(f'(", " {rule})?' for rule in others)])
    else:  # whichever comes first has no comma before it
        first = [
            " ".join([rule, *(f'(", " {later})?' for later in others[at + 1 :])])
            for at, rule in enumerate(others)
        ]
        body = f"({' | '.join(first)})?" if first else ""
    return [f'call_{i}: {json.dumps(f"{name}(")} {body} ")"', *rules]
