"""The text of one call, as it comes."""

from __future__ import annotations

import json
from collections.abc import Collection

from penstock.parsing.json_scan import SPACE, Expect, JsonScan, NotJson

ARGUMENT_KEYS = frozenset({"arguments", "parameters"})


class NotACall(Exception):
    """The text is no call of one of the tools, whatever may follow."""


class CallText:
    """One call as it is written: ``{"name": ..., "arguments": {...}}``, in any order of keys.

    With ``name`` given it is the object of the arguments alone. Arguments are handed on in the
    model's own characters, never written anew.
    """

    def __init__(self, tools: Collection[str], name: str | None = None) -> None:
        self.name = name
        self._tools = tools
        self._characters: list[str] = []
        self._scan = JsonScan()
        self._bare = name is not None
        self._key: str | None = None
        self._token_at = 0  # of the key or value of the outermost object that is being read
        self._taken = 0  # where the arguments go on that were not taken yet
        self._begun = self._bare
        self._end: int | None = None  # past the arguments

    @property
    def done(self) -> bool:
        return self._scan.done

    @property
    def announced(self) -> bool:
        """Whether it is known what is called, and the arguments have begun."""
        return self.name is not None and self._begun and bool(self._characters)

    def feed(self, char: str) -> None:
        """Raises NotACall at the first character, which is kept, that makes it none."""
        scan, at = self._scan, len(self._characters)
        depth, expected, inside = scan.depth, scan.expect, scan.inside_token
        self._characters.append(char)
        try:
            scan.feed(char)
        except NotJson:
            raise NotACall from None
        if self._bare:
            return
        if depth == 1 and not inside and char not in SPACE:
            if expected is Expect.VALUE:
                self._value_begins(char, at)
            elif char == '"':
                self._token_at = at
        if scan.depth == 1:
            if scan.expect is Expect.COLON and inside:
                self._key = self._string(at + 1)
            elif depth == 2 and self._key in ARGUMENT_KEYS:
                self._end = at + 1
            elif scan.expect is Expect.COMMA_OR_END and inside and self._key == "name":
                self._name_ends(at + 1)
        elif scan.done and not self.announced:
            raise NotACall

    def take(self, broken: bool = False) -> str:
        """The arguments since the last time; ``broken`` leaves out the last character fed."""
        if not self._begun:
            return ""
        end = len(self._characters) - broken if self._end is None else self._end
        text = "".join(self._characters[self._taken : end])
        self._taken = max(self._taken, end)
        return text

    def rest(self) -> str:
        """The text after the arguments that were taken; all of it if none were."""
        return "".join(self._characters[self._taken if self.announced else 0 :])

    def text(self) -> str:
        return "".join(self._characters)

    def _value_begins(self, char: str, at: int) -> None:
        self._token_at = at
        if self._key in ARGUMENT_KEYS:
            if char != "{" or self._begun:
                raise NotACall
            self._begun = True
            self._taken = at
        elif self._key == "name" and (char != '"' or self.name is not None):
            raise NotACall

    def _name_ends(self, end: int) -> None:
        name = self._string(end)
        if name not in self._tools:
            raise NotACall
        self.name = name

    def _string(self, end: int) -> str:
        text: str = json.loads("".join(self._characters[self._token_at : end]))
        return text
