"""JSON of clients and replicas, which may be anything."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.json_text import decoded
from penstock.server_link import message

Kind = TypeVar("Kind")


def read(data: bytes | msgspec.Raw, kind: type[Kind]) -> Kind | None:
    """The value of type ``kind`` that ``data`` stands for; None where it is no such JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def said(body: bytes) -> str:
    """What an error's body says, in a line; empty where it is no JSON."""
    try:
        return message(decoded(body, Any))
    except ValueError:
        return ""
