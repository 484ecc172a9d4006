"""From the bytes of a body to a request: strict JSON, strict fields, bounded complaints."""

from __future__ import annotations

import json
import re
from typing import Generic, TypeVar

import msgspec

from penstock.server.openai.errors import ApiError
from penstock.server.openai.protocol import Sampling, Strict

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `([^`]*)`")


class BodyDecoder(Generic[Body]):
    """Decodes one kind of body; every complaint is an ApiError 400 that names the field."""

    def __init__(self, kind: type[Body]) -> None:
        self._decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Body:
        try:
            request = self._decoder.decode(body)
            json.loads(body, object_pairs_hook=_unique)
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from None
        except RecursionError:
            raise ApiError(400, "the body is nested too deeply") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise ApiError(400, f"the body is not valid JSON in UTF-8: {error}") from None
        if isinstance(request, Strict):
            _refuse(request)
        if isinstance(request, Sampling):
            _check_stream_options(request)
        return request


def _unique(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object that holds a key twice.

    Readers of JSON differ in which of the two they take, so that a proxy which checks the one
    could be made to pass the other.
    """
    if len(pairs) < 2:
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ApiError(
                400, f"the field {key!r} is there twice", param=key, code="duplicate_parameter"
            )
        seen.add(key)


def _invalid(text: str) -> ApiError:
    match = _AT.match(text)
    assert match is not None  # the pattern matches any text
    what, path = match["what"], match["path"] or ""
    if found := _UNKNOWN.search(what):
        field = f"{path}.{found[1]}" if path else found[1]
        return ApiError(400, f"unknown field {field!r}", param=field, code="unknown_parameter")
    if found := _MISSING.search(what):
        field = f"{path}.{found[1]}" if path else found[1]
        return ApiError(
            400, f"the field {field!r} is required", param=field, code="missing_required_parameter"
        )
    what = what.replace("`", "")
    message = f"{path}: {what[:1].lower()}{what[1:]}" if path else f"the body: {what}"
    return ApiError(400, message, param=path or None, code="invalid_type")


def _refuse(request: Strict) -> None:
    for name, neutral in request.REFUSED.items():
        value = getattr(request, name)
        if value is None or any(type(value) is type(n) and value == n for n in neutral):
            continue
        allowed = " or ".join(msgspec.json.encode(n).decode() for n in (None, *neutral))
        raise ApiError(
            400,
            f"{name!r} is not supported by this server; leave it out (or {allowed})",
            param=name,
            code="unsupported_parameter",
        )


def _check_stream_options(request: Sampling) -> None:
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise ApiError(
            400, "stream_options is only allowed with stream=true", param="stream_options"
        )
    if options.include_obfuscation:
        raise ApiError(
            400,
            "stream_options.include_obfuscation is not supported; leave it out or false",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    if options.continuous_usage_stats and not options.include_usage:
        raise ApiError(
            400,
            "stream_options.continuous_usage_stats is only allowed with include_usage=true",
            param="stream_options.continuous_usage_stats",
        )
