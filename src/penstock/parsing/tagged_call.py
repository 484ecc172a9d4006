"""The text of one call whose arguments are tagged, as it comes, and the JSON that it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.parsing.call_heads import MAX_NAME
from penstock.parsing.call_text import NotACall
from penstock.parsing.json_scan import SPACE
from penstock.parsing.tag_form import TagForm
from penstock.parsing.tagged_values import json_value

_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_MAX_KEY = 256
"""Characters in an argument's name."""


class TaggedCall:
    """One call as ``form`` has it, read a character at a time.

    An argument is handed on as JSON when it is whole: what its text means depends on all of it,
    and on its schema. ``tools`` are the schemas of the arguments of the functions that may be
    called, by their names.
    """

    def __init__(self, form: TagForm, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.name: str | None = None
        self.done = False
        self._form = form
        self._tools = tools
        self._characters: list[str] = []
        self._part: list[str] = []  # what was not understood yet
        self._key = ""
        self._arguments = ""
        self._new = ""
        self._read_to = 0  # past the text of the last argument
        self._taken_to = 0
        self._state: Callable[[str], bool] = self._before_name

    @property
    def announced(self) -> bool:
        """Whether it is known what is called, and there are arguments, or none will come."""
        return self.name is not None and bool(self._arguments)

    def feed(self, char: str) -> None:
        """Raises NotACall at the first character, which is kept, that makes it none."""
        self._characters.append(char)
        if self._part or char not in SPACE or self._state == self._in_value:
            self._part.append(char)
        while not self.done and self._state(char):
            pass

    def take(self, broken: bool = False) -> str:
        """The JSON of the arguments since the last time, whether ``broken`` or not: what breaks is
        never part of it."""
        new, self._new = self._new, ""
        self._taken_to = self._read_to
        return new

    def rest(self) -> str:
        """The text after the arguments that were taken; all of it if none were."""
        return "".join(self._characters[self._taken_to if self.announced else 0 :])

    def text(self) -> str:
        return "".join(self._characters)

    # States. Each says whether it came to its end; what follows may be in the text already.

    def _before_name(self, char: str) -> bool:
        return self._passed(self._form.before_name, self._in_name)

    def _in_name(self, char: str) -> bool:
        text = "".join(self._part).lstrip(SPACE)
        match = _NAME.match(text)
        assert match is not None
        name = match[0]
        if len(name) > MAX_NAME or (name != text and name not in self._tools):
            raise NotACall
        if name == text:
            return False
        self.name = name
        self._part = list(text[len(name) :])
        self._state = self._after_name
        return True

    def _after_name(self, char: str) -> bool:
        return self._passed(self._form.after_name, self._body)

    def _body(self, char: str) -> bool:
        """Reads before an argument or the end."""
        text = "".join(self._part).lstrip(SPACE)
        key, end = self._form.before_key.strip(), self._form.end
        if text.startswith(end):
            self._add("}" if self._arguments else "{}")
            self.done = True
        elif text.startswith(key):
            self._part = list(text[len(key) :])
            self._state = self._in_key
        elif not (key.startswith(text) or end.startswith(text)):
            raise NotACall
        else:
            return False
        return True

    def _in_key(self, char: str) -> bool:
        end = self._form.after_key.strip()
        key, found, rest = "".join(self._part).partition(end)
        if len(key) > _MAX_KEY or "\n" in key.strip():
            raise NotACall
        if not found:
            return False
        self._key = key.strip()
        self._part = list(rest)
        self._state = self._before_value
        return True

    def _before_value(self, char: str) -> bool:
        if not self._form.before_value:  # else space is part of the value
            self._state = self._in_value
            return bool(self._part)
        return self._passed(self._form.before_value, self._in_value)

    def _in_value(self, char: str) -> bool:
        end = self._form.after_value.strip()
        if char != end[-1] or "".join(self._part[-len(end) :]) != end:
            return False
        text = "".join(self._part[: -len(end)])
        schema = self._tools[self.name or ""].get("properties", {}).get(self._key, {})
        if self._form.after_value.startswith("\n"):
            text = text.removeprefix("\n").removesuffix("\n")
        value = json_value(text, schema)
        key = json.dumps(self._key, ensure_ascii=False)
        self._add(f"{', ' if self._arguments else '{'}{key}: {value}")
        self._part = []
        self._state = self._body
        return False

    def _passed(self, mark: str, then: Callable[[str], bool]) -> bool:
        """Pass ``mark`` and the space before it."""
        mark = mark.strip()
        text = "".join(self._part).lstrip(SPACE)
        if not text.startswith(mark):
            if not mark.startswith(text):
                raise NotACall
            return False
        self._part = list(text[len(mark) :])
        self._state = then
        return bool(self._part)

    def _add(self, text: str) -> None:
        self._arguments += text
        self._new += text
        self._read_to = len(self._characters)
