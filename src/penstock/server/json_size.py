"""What is looked at in the bytes of a body: how much there is to read, and keys that come twice."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import numpy as np

from penstock.server.errors import ApiError

MAX_NODES: Final = 1 << 17
"""Fields, lists and objects of one body together: each costs about a microsecond, and a thousand
times a byte of text. Texts and numbers in lists count nothing."""
MAX_VALUES: Final = 1 << 21
"""Values of one body together, numbers in lists included: each costs a tenth of a microsecond, and
no model has a context of so many tokens."""

_PIECE: Final = 1 << 20
_NODES: Final = (b"{", b"[", b":")
_ESCAPED_COLON: Final = rb"\u003"  # and an A; it begins those of other characters, too


def check_nodes(body: bytes) -> None:
    """Raise ApiError 400 where the body holds more than MAX_NODES or MAX_VALUES; takes time for
    long ones."""
    if _exceeds(body, _NODES, MAX_NODES):
        what = f"{MAX_NODES} fields, lists and objects together"
    elif _exceeds(body, (b",",), MAX_VALUES):
        what = f"{MAX_VALUES} values together"
    else:
        return
    raise ApiError(
        400,
        f"the body holds more than {what}; send shorter lists, or several requests",
        code="body_too_complex",
    )


def _exceeds(body: bytes, marks: tuple[bytes, ...], limit: int) -> bool:
    """Whether there are more than ``limit`` of the marks outside of strings."""
    if len(body) <= limit or sum(map(body.count, marks)) <= limit:
        return False
    return _outside_strings(body, marks) > limit


def _outside_strings(body: bytes, marks: tuple[bytes, ...]) -> int:
    # Outside of strings there are no escapes.
    plain = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    found, inside = 0, np.uint8(0)
    for start in range(0, len(plain), _PIECE):
        piece = plain[start : start + _PIECE]
        in_string = np.bitwise_xor.accumulate((piece == ord('"')).view(np.uint8)) ^ inside
        inside = in_string[-1]
        for mark in marks:
            found += int(np.count_nonzero((piece == ord(mark)) & (in_string == 0)))
    return found


def check_unique(body: bytes, given: Any) -> None:
    """Refuse an object that holds a key twice; ``given`` is what ``body`` was decoded to.

    Readers of JSON differ in which of the two they take, so that a proxy which checks the one
    could be made to pass the other. Raises ApiError 400 naming the key.

    Written again, ``given`` has each key once, and as many colons as ``body`` if none was lost:
    no colon comes from elsewhere but an escape. That spares a second, slower reading.
    """
    if _ESCAPED_COLON in body or body.count(b":") != msgspec.json.encode(given).count(b":"):
        json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ApiError(
                400, f"the field {key!r} is there twice", param=key, code="duplicate_parameter"
            )
        seen.add(key)
