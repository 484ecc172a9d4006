"""Grammars whose parts refer to each other in a row, which recursion follows to the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from penstock.grammar.spec import GrammarSpec

Link = Callable[[str], dict[str, Any]]


def schema_chain(link: Link, length: int) -> dict[str, Any]:
    """Each definition holds the next, as ``link`` writes it of a reference."""
    definitions = {f"d{i}": link(f"#/$defs/d{i + 1}") for i in range(length)}
    definitions[f"d{length}"] = {"type": "integer"}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


LINKS: dict[str, tuple[Link, int]] = {
    "items": (lambda ref: {"type": "array", "items": {"$ref": ref}}, 1400),
    "properties": (lambda ref: {"type": "object", "properties": {"a": {"$ref": ref}}}, 1300),
    "anyOf": (lambda ref: {"anyOf": [{"$ref": ref}]}, 2500),
    "allOf": (lambda ref: {"allOf": [{"$ref": ref}]}, 2500),
    "$ref": (lambda ref: {"$ref": ref}, 3600),
}
"""Chains by name, each with the length that overflowed a stack of 8 MiB."""


def rules(length: int) -> str:
    links = "".join(f"r{i}: r{i + 1}\n" for i in range(length))
    return f'start: r0\n{links}r{length}: "a"\n'


def terminals(length: int) -> str:
    links = "".join(f"T{i}: T{i + 1}\n" for i in range(length))
    return f'start: T0\n{links}T{length}: "a"\n'


def json_inside(length: int) -> str:
    return f"start: %json {json.dumps(schema_chain(LINKS['$ref'][0], length))}"


LARKS: dict[str, tuple[Callable[[int], str], int]] = {
    "rules": (rules, 3000),
    "terminals": (terminals, 6000),
    "%json": (json_inside, 2500),
}


def specs(factor: float = 1) -> dict[str, GrammarSpec]:
    """Each chain, at its length times ``factor``."""
    made = {
        name: GrammarSpec(
            kind="json_schema", text=json.dumps(schema_chain(link, int(length * factor)))
        )
        for name, (link, length) in LINKS.items()
    }
    for name, (write, length) in LARKS.items():
        made[name] = GrammarSpec(kind="lark", text=write(int(length * factor)))
    return made
