"""From the bytes of a body to a request: strict JSON, strict fields, bounded complaints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from penstock.server.errors import ApiError
from penstock.server.openai.field_check import take_out, unknown
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.fields import Rule
from penstock.server.openai.json_size import check_nodes, check_unique
from penstock.server.openai.places import Place
from penstock.server.openai.protocol import Sampling
from penstock.server.openai.thinking import heed

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*)`\Z")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `([^`]*)`")
_TEMPLATE_OPTIONS = "chat_template_kwargs"


@dataclass(frozen=True)
class Decoded(Generic[Body]):
    request: Body
    ignored: tuple[Rule, ...]
    """Rules of the fields that were ignored because they are only advisory, each rule once."""


class BodyDecoder(Generic[Body]):
    """Decodes one kind of body; every error is an ApiError 400 that names the field.

    ``endpoint`` is the path whose rules in the field table apply, ``model`` the model that is used
    where the body names none, and ``template_reads`` the variables that the chat template reads.
    """

    def __init__(
        self,
        kind: type[Body],
        endpoint: str = "",
        model: str | None = None,
        template_reads: frozenset[str] = frozenset(),
    ) -> None:
        self._kind = kind
        self._place = Place.of(kind, rules_of(endpoint))
        self._model = model
        self._template_reads = template_reads

    def decode(self, body: bytes) -> Decoded[Body]:
        given = self._parsed(body)
        ignored = self._take_out(given) if isinstance(given, dict) else ()
        try:
            request = msgspec.convert(given, self._kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from None
        if isinstance(request, Sampling):
            _check_stream_options(request)
        return Decoded(request, ignored)

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

    def _take_out(self, given: dict[str, Any]) -> tuple[Rule, ...]:
        advice = take_out(given, self._place)
        if self._model is not None:
            given.setdefault("model", self._model)
        if not advice:
            return ()
        rules = [each.rule for each in advice if not each.rule.wish]
        wishes = [each for each in advice if each.rule.wish]
        if wishes:
            options = given.get(_TEMPLATE_OPTIONS, {})
            if isinstance(options, dict):
                rules += heed(wishes, self._template_reads, options)
            if options:
                given[_TEMPLATE_OPTIONS] = options
        return tuple(dict.fromkeys(rules))

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


def _check_stream_options(request: Sampling) -> None:
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise ApiError(
            400, "stream_options is only allowed with stream=true", param="stream_options"
        )
    if options.continuous_usage_stats and not options.include_usage:
        raise ApiError(
            400,
            "stream_options.continuous_usage_stats is only allowed with include_usage=true",
            param="stream_options.continuous_usage_stats",
        )
