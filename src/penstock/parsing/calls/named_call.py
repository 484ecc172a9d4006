"""The text of one call whose name comes before its arguments."""

from __future__ import annotations

import re
from functools import cache

from penstock.parsing.calls.call_reader import MAX_NAME, NotACall, Tools
from penstock.parsing.calls.json_call import ArgumentsReader
from penstock.parsing.forms import NamedForm


class NamedCall:
    """A head, which is understood when the arguments' ``{`` has come, then these."""

    def __init__(self, form: NamedForm, tools: Tools) -> None:
        self._form = form
        self._tools = tools
        self._head = ""
        self._arguments: ArgumentsReader | None = None

    @property
    def name(self) -> str | None:
        return None if self._arguments is None else self._arguments.name

    @property
    def done(self) -> bool:
        return self._arguments is not None and self._arguments.done

    @property
    def announced(self) -> bool:
        return self._arguments is not None and self._arguments.announced

    def feed(self, char: str) -> None:
        if self._arguments is None and char == "{":
            match = _head(self._form).fullmatch(self._head)
            if match is None or match["name"] not in self._tools:
                self._head += char
                raise NotACall
            self._arguments = ArgumentsReader(match["name"])
        if self._arguments is not None:
            self._arguments.feed(char)
            return
        self._head += char
        if len(self._head) > _longest_head(self._form):
            raise NotACall

    def take(self, broken: bool = False) -> str:
        return "" if self._arguments is None else self._arguments.take(broken)

    def rest(self) -> str:
        return self._head if self._arguments is None else self._arguments.rest()

    def text(self) -> str:
        return self._head + ("" if self._arguments is None else self._arguments.text())


@cache
def _head(form: NamedForm) -> re.Pattern[str]:
    """Matches what is before the arguments; the group ``name`` is the name."""
    number = r"(?::\d{1,9})?" if form.numbered else ""
    name = rf"\s*(?P<name>[A-Za-z0-9_.-]{{1,{MAX_NAME}}})"
    after = _pieces(form.after_name)
    if form.optional_after:
        after = "".join(rf"\s*(?:{each})?" for each in form.optional_after) + f"(?:{after})?"
    return re.compile(rf"{_pieces(form.before_name)}{name}{number}{after}\s*")


@cache
def _longest_head(form: NamedForm) -> int:
    """Longer text without a ``{`` is no head."""
    pieces = (*form.before_name, *form.after_name, *form.optional_after)
    return 2 * MAX_NAME + sum(map(len, pieces)) + 16


def _pieces(pieces: tuple[str, ...]) -> str:
    return "".join(rf"\s*{re.escape(piece.strip())}" for piece in pieces)
