"""Grammar rules of calls that are written as Python's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.parsing.grammars.schemas import bound_value, definitions_of, in_commas, properties_of


def python_rules(i: int, name: str, schema: Mapping[str, Any]) -> list[str]:
    """Rules for a call of function ``i``, the first of which is ``call_<i>``.

    Required arguments come first, each group in the order of the schema's properties; others are
    not let through. Values are JSON, which is read beside Python's, each bound by its own schema.
    """
    definitions = definitions_of(schema)
    properties, required = properties_of(schema)
    rules: list[str] = []
    names: dict[str, str] = {}
    for j, (key, of_key) in enumerate(properties.items()):
        names[key] = rule = f"argument_{i}_{j}"
        value = json.dumps(bound_value(of_key, definitions))
        rules += [f"{rule}: {json.dumps(f'{key}=')} {rule}_value", f"{rule}_value: %json {value}"]
    needed = [rule for key, rule in names.items() if key in required]
    others = [rule for key, rule in names.items() if key not in required]
    body = in_commas(needed, others, '", "')
    return [f'call_{i}: {json.dumps(f"{name}(")} {body} ")"', *rules]
