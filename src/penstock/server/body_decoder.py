"""Decodes the bytes of a body into a request: strict JSON, strict fields, bounded complaints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.server.errors import ApiError
from penstock.server.fields.check import Advice, take_out, unknown
from penstock.server.fields.places import Place
from penstock.server.fields.rules import Rule
from penstock.server.json_size import check_nodes, check_unique

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `([^`]*)`")


@dataclass(frozen=True)
class Decoded(Generic[Body]):
    request: Body
    ignored: tuple[Rule, ...]
    """Rules of the fields that were ignored because they are only advisory, each rule once."""
    named: tuple[str, ...]
    """The names of these fields, which are ASCII."""


class BodyDecoder(Generic[Body]):
    """Decodes one kind of body; every error is an ApiError 400 that names the field.

    ``rules`` are for the fields that its structs have not.
    """

    def __init__(self, kind: type[Body], rules: Iterable[Rule] = ()) -> None:
        self._kind = kind
        self._place = Place.of(kind, rules)

    def decode(self, body: bytes) -> Decoded[Body]:
        return self.converted(self._parsed(body))

    def converted(self, given: Any) -> Decoded[Body]:
        """As :meth:`decode`, for JSON that is parsed already, which this changes."""
        ignored: list[Rule] = []
        if isinstance(given, dict):
            ignored = self._heed(take_out(given, self._place), given)
        try:
            request = msgspec.convert(given, self._kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from None
        self._check(request)
        rules = tuple(dict.fromkeys(ignored))
        return Decoded(request, rules, tuple(name for r in rules for name in self._names(r, given)))

    def _parsed(self, body: bytes) -> Any:
        check_nodes(body)
        try:
            given = msgspec.json.decode(body)
            check_unique(body, given)
        except RecursionError:
            raise self._unreadable(body, "nested too deeply") from None
        except msgspec.ValidationError as error:
            raise self._unreadable(body, str(error).partition(" - at ")[0].lower()) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise ApiError(400, f"the body is not valid JSON in UTF-8: {error}") from None
        return given

    def _heed(self, advice: list[Advice], given: dict[str, Any]) -> list[Rule]:
        """Follow what advice can be followed, by changing ``given``; returns the rules of the
        rest."""
        return [each.rule for each in advice]

    def _names(self, rule: Rule, given: dict[str, Any]) -> Iterable[str]:
        """The names of the fields of ``given`` that were ignored by this rule."""
        return (rule.field,)

    def _check(self, request: Body) -> None:
        """Raise ApiError for fields of the request that contradict each other."""

    def _unreadable(self, body: bytes, why: str) -> ApiError:
        """Return the error for a body that is nested too deeply or holds an invalid number, with
        the place."""
        try:
            msgspec.json.decode(body, type=self._kind)
        except msgspec.ValidationError as error:
            found = self._invalid(str(error))
            named = found.body.error
            if named.code != "unknown_parameter":
                return found
            return ApiError(400, f"{named.param}: {why}", param=named.param, code="invalid_type")
        except (RecursionError, msgspec.DecodeError):
            pass
        return ApiError(400, f"the body: {why}")

    def _invalid(self, text: str) -> ApiError:
        at = _AT.search(text)
        what, path = (text, "") if at is None else (text[: at.start()], at[1])
        if found := _UNKNOWN.search(what):
            return unknown(f"{path}.{found[1]}" if path else found[1], self._place.at(path))
        if found := _MISSING.search(what):
            field = f"{path}.{found[1]}" if path else found[1]
            why = f"the field {field!r} is required"
            return ApiError(400, why, param=field, code="missing_required_parameter")
        what = what.replace("`", "")
        message = f"{path}: {what[:1].lower()}{what[1:]}" if path else f"the body: {what}"
        return ApiError(400, message, param=path or None, code="invalid_type")
