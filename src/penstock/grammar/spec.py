"""What a request says that its output must be."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["json_object", "json_schema", "regex", "lark", "choice"]


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on a whole output, as the request gave it. Equal specs are the same grammar."""

    kind: Kind
    text: str = ""
    """JSON of the schema (json_schema) or of a list of strings (choice); the regular expression;
    the grammar in Lark's notation; empty for json_object."""
