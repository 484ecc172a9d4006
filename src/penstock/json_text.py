"""Reads JSON that others wrote, nested as deeply as it may."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from penstock.terminal import json_for_terminals

Kind = TypeVar("Kind")

MAX_DEPTH: Final = 100
"""Lists and objects within each other. Readers and writers of JSON recurse; how deeply they can
depends on who calls them, so what was read near that limit could not be written again."""
MAX_VALUE_DEPTH: Final = 50
"""The same for a value that a person sets: the conversation's file has it within other objects."""

_PARTS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def decoded(text: str | bytes, kind: type[Kind], most: int = MAX_DEPTH) -> Kind:
    """The value of type ``kind`` that ``text`` stands for, nested at most ``most`` levels deep.

    Raises ValueError, of which msgspec.DecodeError and UnicodeError are, that says what is wrong
    with it.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if text.count("[") + text.count("{") > most and _depth(text) > most:
        raise ValueError(f"it is nested more than {most} levels deep")
    return msgspec.json.decode(text, type=kind)


def encoded(value: object) -> str:
    """``value`` as JSON that may be shown on a terminal."""
    return json_for_terminals(msgspec.json.encode(value).decode())


def _depth(text: str) -> int:
    deepest = depth = 0
    for part in _PARTS.finditer(text):
        if part[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif part[0] in "]}":
            depth -= 1
    return deepest
