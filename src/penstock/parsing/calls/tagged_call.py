"""The text of one call whose arguments are tagged, as it comes, and the JSON that it stands for."""

from __future__ import annotations

import json

from penstock.parsing.calls.call_reader import MAX_KEY, NotACall, Tools
from penstock.parsing.calls.stepped_call import SteppedCall, Steps
from penstock.parsing.calls.tagged_values import json_value, text_value
from penstock.parsing.forms import TagForm


class TaggedCall(SteppedCall):
    """One call as ``form`` has it.

    An argument is handed on as JSON when it is whole: what its text means depends on all of it,
    and on its schema.
    """

    def __init__(self, form: TagForm, tools: Tools) -> None:
        self._form = form
        super().__init__(tools)

    def _read(self) -> Steps:
        form = self._form
        for mark in (*form.before, form.before_name):
            yield from self._one_of(mark)
        yield from self._called()
        yield from self._one_of(form.after_name)
        end, before = form.end, "{"
        while (yield from self._one_of(form.before_key, end)) != end:
            key = (yield from self._until(form.after_key.strip(), MAX_KEY)).strip()
            if "\n" in key:
                raise NotACall
            kind = ""
            if form.kinds is not None:
                kind = yield from self._one_of(*form.kinds)
            if form.before_value:  # else space is part of the value
                yield from self._one_of(form.before_value)
            text = yield from self._until(form.after_value.strip())
            if form.after_value.startswith("\n"):
                text = text.removeprefix("\n").removesuffix("\n")
            schema = self._tools[self.name or ""].get("properties", {}).get(key, {})
            said = form.kinds is not None and kind == form.kinds[0]
            written = text_value(text, schema) if said else json_value(text, schema)
            self._write(f"{before}{json.dumps(key, ensure_ascii=False)}: {written}")
            before = ", "
        self._write("{}" if before == "{" else "}")
