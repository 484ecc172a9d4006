"""The text of one call with texts between quotes of its own, as it comes, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.parsing.calls.call_reader import MAX_KEY, NotACall, Tools
from penstock.parsing.calls.json_scan import MAX_DEPTH
from penstock.parsing.calls.stepped_call import Reads, SteppedCall, Steps
from penstock.parsing.calls.tagged_values import json_value
from penstock.parsing.forms import ValueForm


class ValueCall(SteppedCall):
    """One call as ``form`` has it.

    Text without quotes is a text as well if it is no number, true, false or null, and where the
    argument's schema asks for a text.
    """

    def __init__(self, form: ValueForm, tools: Tools) -> None:
        self._quote = form.quote
        self._before_name = form.before_name
        super().__init__(tools)

    def _read(self) -> Steps:
        yield from self._one_of(self._before_name)
        yield from self._called()
        yield from self._one_of("{")
        yield from self._object(1, self._tools[self.name or ""])

    def _object(self, depth: int, schema: object) -> Steps:
        """What follows its opening."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        schemas = properties if isinstance(properties, Mapping) else {}
        before = "{"
        char = yield from self._after_space()
        while char != "}":
            self._ahead = char
            key = yield from self._key()
            self._write(f"{before}{_json(key)}: ")
            before = ", "
            yield from self._value(depth, schemas.get(key, {}))
            char = yield from self._after_comma("}")
        self._write("{}" if before == "{" else "}")

    def _list(self, depth: int) -> Steps:
        self._write("[")
        before = ""
        char = yield from self._after_space()
        while char != "]":
            self._write(before, 1)
            before = ", "
            self._ahead = char
            yield from self._value(depth, {})
            char = yield from self._after_comma("]")
        self._write("]")

    def _after_comma(self, end: str) -> Reads:
        """The next character behind a comma, or ``end``."""
        char = yield from self._after_space()
        if char == ",":
            return (yield from self._after_space())
        if char != end:
            raise NotACall
        return char

    def _key(self) -> Reads:
        """A name and the colon behind it."""
        text = yield from self._quote_or_text()
        if text == self._quote:
            text = yield from self._until(self._quote, MAX_KEY)
            yield from self._one_of(":")
            return text
        while text[-1] != ":":
            if text[-1] in "{}[],\n" or len(text) > MAX_KEY:
                raise NotACall
            text += yield from self._next()
        key = text[:-1].strip()
        if not key:
            raise NotACall
        return key

    def _value(self, depth: int, schema: object) -> Steps:
        if depth > MAX_DEPTH:
            raise NotACall
        text = yield from self._quote_or_text()
        if text == self._quote:
            yield from self._text()
        elif text == "{":
            yield from self._object(depth + 1, schema)
        elif text == "[":
            yield from self._list(depth + 1)
        else:
            while text[-1] not in ",}]":
                text += yield from self._next()
            self._ahead, written = text[-1], text[:-1].strip()
            if not written:
                raise NotACall
            self._write(json_value(written, schema), 1)

    def _quote_or_text(self) -> Reads:
        """A quote, or the character that shows that none follows, with what looked like one."""
        text = yield from self._after_space()
        while text != self._quote and self._quote.startswith(text):
            text += yield from self._next()
        return text

    def _text(self) -> Steps:
        """What follows the quote, handed on character by character."""
        self._write('"')
        held = ""
        while held != self._quote:
            held += yield from self._next()
            while not self._quote.startswith(held):
                self._write(_json(held[0])[1:-1], len(held) - 1)
                held = held[1:]
        self._write('"')


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
