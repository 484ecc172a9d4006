"""JSON objects as they are read from files of strangers: strictly."""

from __future__ import annotations

import json
import math
from pathlib import Path

from penstock.errors import PenstockError
from penstock.regular_file import read_regular


def parse_json_object(
    text: bytes, where: str, error: type[PenstockError], infinite: bool = False
) -> dict[str, object]:
    """Parse a JSON object without NaN, repeated keys and, unless ``infinite``, infinities; raises
    ``error`` naming ``where``."""
    constant = _infinity if infinite else _no_constant
    try:
        value = json.loads(text, parse_constant=constant, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as e:
        raise error(f"{where} is not valid JSON: {e}; take it from the original again") from e
    if not isinstance(value, dict):
        raise error(f"{where} must hold a JSON object, not {type(value).__name__}")
    return value


def read_json_object(
    path: Path, error: type[PenstockError], infinite: bool = False
) -> dict[str, object]:
    """:func:`parse_json_object` of a file; an unreadable file raises ``error`` too."""
    try:
        text = read_regular(path)
    except OSError as e:
        raise error(f"cannot read {path}: {e.strerror}") from e
    return parse_json_object(text, str(path), error, infinite)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def _infinity(name: str) -> object:
    return math.inf if name == "Infinity" else _no_constant(name)


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object repeats a key")
    return result
