"""Reads and checks the requests of a batch's input file."""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.server.errors import ApiError
from penstock.server.json_size import check_unique
from penstock.server.openai.batches.protocol import BatchFault, BatchLine

MAX_LINES: Final = 50_000
"""Most requests of a batch, as in OpenAI's API."""
MAX_ID_CHARS: Final = 256
_MAX_FAULTS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW: Final = 14 * 86_400


class Place(NamedTuple):
    """Where a request is in its input file: what is kept of it until it is made, since files are
    long and batches many."""

    custom_id: str
    at: int
    """The line's first byte."""
    size: int
    """Its bytes."""


class _Body(msgspec.Struct, frozen=True):
    """A line's body, of which nothing else is read."""

    body: msgspec.Raw


def window_seconds(text: str) -> int | None:
    """The seconds of ``24h``, ``90m`` or ``30s``, at most 14 days; None where it is no time."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    return seconds if 0 < seconds <= _MAX_WINDOW else None


def read_lines(path: Path, endpoint: str) -> tuple[list[Place], list[BatchFault]]:
    """The requests of a file to ``endpoint``, or what is wrong with it. Raises OSError."""
    places: list[Place] = []
    faults: list[BatchFault] = []
    seen: dict[str, int] = {}
    for number, at, data in _numbered(path):
        if len(faults) == _MAX_FAULTS:
            break
        if len(places) == MAX_LINES:
            why = f"the file has more than {MAX_LINES} requests; send several batches"
            faults.append(BatchFault(code="too_many_requests", message=why, line=number))
            break
        try:
            given = msgspec.json.decode(data)
            line = msgspec.convert(given, BatchLine)
            check_unique(data, given)
        except (msgspec.MsgspecError, ValueError, RecursionError, ApiError) as error:
            why = f"line {number} is no request: {_cause(data, error)}"
            faults.append(BatchFault(code="invalid_line", message=why, line=number))
            continue
        fault = _fault(line, number, endpoint, seen)
        if fault is not None:
            faults.append(fault)
        seen.setdefault(line.custom_id, number)
        places.append(Place(line.custom_id, at, len(data)))
    if not places and not faults:
        faults.append(BatchFault(code="empty_file", message="the input file has no requests"))
    return places, faults


def body_at(path: Path, place: Place) -> bytes:
    """The body of the request that is there, as it was sent. Raises OSError."""
    with path.open("rb") as file:
        file.seek(place.at)
        data = file.read(place.size)
    try:
        return bytes(msgspec.json.decode(data, type=_Body).body)
    except msgspec.MsgspecError as error:
        raise OSError(f"{path} has changed since it was read") from error


def _numbered(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The lines that are not blank: each with its number and its first byte."""
    with path.open("rb") as file:
        at = 0
        for number, data in enumerate(file, 1):
            # Editors of Windows begin a file so, which says nothing but that it is UTF-8.
            mark = len(BOM_UTF8) if number == 1 and data.startswith(BOM_UTF8) else 0
            if data.strip():
                yield number, at + mark, data[mark:]
            at += len(data)


def _cause(data: bytes, error: Exception) -> str:
    """Why a line is no request, and what it should be."""
    if data.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "it is text in UTF-16; save the file as UTF-8"
    if isinstance(error, ApiError):
        return str(error.body.error.message)
    form = "each line is one whole object with custom_id, method, url and body"
    return f"{error}; {form}" if not isinstance(error, RecursionError) else "nested too deeply"


def _fault(line: BatchLine, number: int, endpoint: str, seen: dict[str, int]) -> BatchFault | None:
    def fault(code: str, param: str, why: str) -> BatchFault:
        return BatchFault(code=code, message=f"line {number}: {why}", line=number, param=param)

    name = line.custom_id
    if not name or len(name) > MAX_ID_CHARS:
        return fault(
            "invalid_custom_id", "custom_id", f"it must have 1 to {MAX_ID_CHARS} characters"
        )
    if name in seen:
        why = f"custom_id {name[:40]!r} is that of line {seen[name]}, too"
        return fault("duplicate_custom_id", "custom_id", why)
    if line.url != endpoint:
        return fault("mismatched_endpoint", "url", f"url is not {endpoint}, as the batch says")
    if line.body.get("stream"):
        return fault("invalid_body", "body.stream", "answers of a batch are not streamed")
    priority = line.body.get("priority")
    if priority is not None and type(priority) is not int:
        return fault("invalid_body", "body.priority", "priority must be a whole number")
    return None
