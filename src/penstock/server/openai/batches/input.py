"""Reads and checks the requests of a batch's input file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock.server.openai.batches.protocol import BatchFault, BatchLine

MAX_LINES: Final = 50_000
"""Most requests of a batch, as in OpenAI's API."""
MAX_ID_CHARS: Final = 256
_MAX_FAULTS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW: Final = 14 * 86_400


def window_seconds(text: str) -> int | None:
    """The seconds of ``24h``, ``90m`` or ``30s``, at most 14 days; None where it is no time."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    return seconds if 0 < seconds <= _MAX_WINDOW else None


def read_lines(path: Path, endpoint: str) -> tuple[list[BatchLine], list[BatchFault]]:
    """The requests of a file to ``endpoint``, or what is wrong with it. Raises OSError."""
    lines: list[BatchLine] = []
    faults: list[BatchFault] = []
    seen: dict[str, int] = {}
    decoder = msgspec.json.Decoder(BatchLine)
    for number, data in _numbered(path):
        if len(faults) == _MAX_FAULTS:
            break
        if len(lines) == MAX_LINES:
            why = f"the file has more than {MAX_LINES} requests; send several batches"
            faults.append(BatchFault(code="too_many_requests", message=why, line=number))
            break
        try:
            line = decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            why = f"line {number} is no request: {error}"
            faults.append(BatchFault(code="invalid_line", message=why, line=number))
            continue
        fault = _fault(line, number, endpoint, seen)
        if fault is not None:
            faults.append(fault)
        seen.setdefault(line.custom_id, number)
        lines.append(line)
    if not lines and not faults:
        faults.append(BatchFault(code="empty_file", message="the input file has no requests"))
    return lines, faults


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield number, data


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
