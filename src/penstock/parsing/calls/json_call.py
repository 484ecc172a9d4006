"""The text of one call that is JSON, as it comes."""

from __future__ import annotations

import json
from typing import Final

from penstock.parsing.calls.call_reader import NotACall, Tools
from penstock.parsing.calls.json_scan import SPACE, Expect, JsonScan, NotJson
from penstock.parsing.forms import JsonForm, KeyForm

_ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})


class ArgumentsReader:
    """The object of the arguments of ``name`` alone.

    Arguments are handed on in the model's own characters, never written anew.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._characters: list[str] = []
        self._scan = JsonScan()
        self._taken = 0  # where the arguments go on that were not taken yet
        self._begun = name is not None
        self._end: int | None = None  # past the arguments

    @property
    def done(self) -> bool:
        return self._scan.done

    @property
    def announced(self) -> bool:
        return self.name is not None and self._begun and bool(self._characters)

    def feed(self, char: str) -> None:
        self._characters.append(char)
        try:
            self._scan.feed(char)
        except NotJson:
            raise NotACall from None

    def take(self, broken: bool = False) -> str:
        if not self._begun:
            return ""
        end = len(self._characters) - broken if self._end is None else self._end
        text = "".join(self._characters[self._taken : end])
        self._taken = max(self._taken, end)
        return text

    def rest(self) -> str:
        return "".join(self._characters[self._taken if self.announced else 0 :])

    def text(self) -> str:
        return "".join(self._characters)


class JsonCall(ArgumentsReader):
    """An object that has the name and the arguments, in any order of keys, or, as KeyForm has it,
    the arguments under the name. Other keys are read over."""

    def __init__(self, form: JsonForm | KeyForm, tools: Tools) -> None:
        super().__init__(None)
        self._form = form
        self._tools = tools
        self._key: str | None = None
        self._token_at = 0  # of the key or value of the outermost object that is being read

    def feed(self, char: str) -> None:
        scan, at = self._scan, len(self._characters)
        depth, expected, inside = scan.depth, scan.expect, scan.inside_token
        super().feed(char)
        if depth == 1 and not inside and char not in SPACE:
            if expected is Expect.VALUE:
                self._value_begins(char, at)
            elif char == '"':
                self._token_at = at
        if scan.depth == 1:
            if scan.expect is Expect.COLON and inside:
                self._key = self._string(at + 1)
            elif depth == 2 and self._holds_arguments:
                self._end = at + 1
            elif scan.expect is Expect.COMMA_OR_END and inside and self._holds_name:
                self._name_ends(at + 1)
        elif scan.done and not self.announced:
            raise NotACall

    @property
    def _holds_name(self) -> bool:
        return isinstance(self._form, JsonForm) and self._key == self._form.name_key

    @property
    def _holds_arguments(self) -> bool:
        return isinstance(self._form, KeyForm) or self._key in _ARGUMENT_KEYS

    def _value_begins(self, char: str, at: int) -> None:
        self._token_at = at
        if self._holds_arguments:
            if char != "{" or self._begun:
                raise NotACall
            if isinstance(self._form, KeyForm):
                self._named(self._key or "")
            self._begun = True
            self._taken = at
        elif self._holds_name and (char != '"' or self.name is not None):
            raise NotACall

    def _name_ends(self, end: int) -> None:
        self._named(self._string(end))

    def _named(self, name: str) -> None:
        if name not in self._tools:
            raise NotACall
        self.name = name

    def _string(self, end: int) -> str:
        text: str = json.loads("".join(self._characters[self._token_at : end]))
        return text
