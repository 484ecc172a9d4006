"""What a request says that its output must be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Kind = Literal["json_object", "json_schema", "regex", "lark", "gbnf", "choice"]


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on a whole output, as the request gave it. Equal specs are the same grammar."""

    kind: Kind
    text: str = ""
    """JSON of the schema (json_schema) or of a list of strings (choice); the regular expression;
    the grammar in Lark's notation or in llama.cpp's (gbnf); empty for json_object."""


def text_without(words: Iterable[str]) -> GrammarSpec:
    """Any text that none of ``words`` is a part of."""
    parts = "|".join("".join(map(_escaped, word)) for word in words)
    text = f"start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:.*)({parts})(?s:.*)/\n"
    return GrammarSpec(kind="lark", text=text)


def _escaped(char: str) -> str:
    """``char`` in a regular expression of Lark's notation."""
    return char if char.isalnum() else f"\\x{{{ord(char):X}}}"
