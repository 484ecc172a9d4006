"""What an output must be, in the form that vLLM's users write."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import RequestError
from penstock.grammar.spec import GrammarSpec


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """One of the fields says what the output must be; :attr:`grammar_spec` is the same as
    :class:`~penstock.grammar.spec.GrammarSpec`."""

    json: Any = None
    """A JSON schema: a dict, its text, or a pydantic model."""
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """A grammar in Lark's notation."""
    json_object: bool | None = None

    @property
    def grammar_spec(self) -> GrammarSpec:
        """Raises RequestError unless there is exactly one field."""
        given = [
            name for name in self.__struct_fields__ if getattr(self, name) not in (None, False)
        ]
        if len(given) != 1:
            raise RequestError(
                f"structured outputs are one of {', '.join(self.__struct_fields__)}, not "
                f"{' and '.join(given) or 'none of them'}",
                "structured_outputs",
            )
        if self.json_object:
            return GrammarSpec(kind="json_object")
        if self.regex is not None:
            return GrammarSpec(kind="regex", text=self.regex)
        if self.grammar is not None:
            return GrammarSpec(kind="lark", text=self.grammar)
        if self.choice is not None:
            return GrammarSpec(kind="choice", text=json_text.dumps(list(self.choice)))
        return GrammarSpec(kind="json_schema", text=_schema(self.json))


def _schema(given: Any) -> str:
    if isinstance(given, str):
        return given
    if hasattr(given, "model_json_schema"):
        given = given.model_json_schema()
    if not isinstance(given, Mapping):
        raise RequestError(
            f"json must be a schema: a dict, its text or a pydantic model, not {given!r:.80}",
            "structured_outputs",
        )
    return json_text.dumps(given)


GuidedDecodingParams = StructuredOutputsParams
"""The name that vLLM had for it before."""
