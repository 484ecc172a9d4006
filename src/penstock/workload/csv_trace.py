"""Published traces in tables: Azure's and BurstGPT's, which say lengths and times alone."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.workload.trace_line import MOST_SECONDS, MOST_TOKENS

_COLUMNS: Final = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
}


@dataclass(frozen=True)
class TimedRequest:
    """One request of such a trace."""

    at_s: float
    """Seconds from any beginning on."""
    prompt: int
    """Tokens of the prompt."""
    output: int
    """Tokens of the answer."""


@dataclass(frozen=True)
class CsvTrace:
    """Requests with a prompt and an answer, in the order of the file."""

    name: str
    """Whose form it has: ``azure`` or ``burstgpt``."""
    requests: Sequence[TimedRequest]
    left_out: int
    """Requests before the last of these that have no prompt or no answer."""

    @classmethod
    def read(cls, path: Path, limit: int | None = None) -> CsvTrace:
        """The first ``limit`` requests. Raises ConfigError for what is no such trace, by its line,
        and OSError."""
        with path.open(encoding="utf-8-sig", newline="") as file:
            try:
                return _read(path, csv.DictReader(file), limit)
            except (csv.Error, UnicodeDecodeError) as error:
                raise ConfigError(f"{path} is no .csv of a trace: {error}") from None


def _read(path: Path, rows: csv.DictReader[str], limit: int | None) -> CsvTrace:
    columns = rows.fieldnames or ()
    name = next((name for name, names in _COLUMNS.items() if {*names} <= {*columns}), None)
    if name is None:
        raise ConfigError(
            f"{path} is no trace that is known here: it has the columns "
            f"{', '.join(columns) or '(none)'}; Azure's have {', '.join(_COLUMNS['azure'])}, "
            f"BurstGPT's {', '.join(_COLUMNS['burstgpt'])}"
        )
    found: list[TimedRequest] = []
    left_out = 0
    for request in _requests(path, rows, _COLUMNS[name]):
        if limit is not None and len(found) == limit:
            break
        if request.prompt and request.output:
            found.append(request)
        else:
            left_out += 1
    if not found:
        raise ConfigError(f"{path} holds no request with a prompt and an answer")
    return CsvTrace(name, found, left_out)


def _requests(
    path: Path, rows: csv.DictReader[str], names: Sequence[str]
) -> Iterator[TimedRequest]:
    for row in rows:
        yield _request(f"{path}, line {rows.line_num}", row, names)


def _request(where: str, row: Mapping[str, str | None], names: Sequence[str]) -> TimedRequest:
    time, prompt, output = (row.get(name) for name in names)
    try:
        at_s = _seconds(time or "")
        lengths = int(float(prompt or "")), int(float(output or ""))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{where} is no request: its {names[0]} is {time!r}, {names[1]} {prompt!r}, {names[2]} "
            f"{output!r}; remove the line, or repair it"
        ) from None
    if not abs(at_s) < MOST_SECONDS or not 0 <= min(lengths) <= max(lengths) <= MOST_TOKENS:
        raise ConfigError(f"{where} has a time or length that cannot be; remove it, or repair it")
    return TimedRequest(at_s, *lengths)


def _seconds(text: str) -> float:
    """A number of seconds, or a date and time, with any number of digits behind the second."""
    try:
        value = float(text)
    except ValueError:
        whole, _, part = text.partition(".")
        part, plus, zone = part.partition("+")
        when = datetime.datetime.fromisoformat(whole + plus + zone)
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.UTC)
        return when.timestamp() + float(f"0.{part or 0}")
    if value < 0:
        raise ValueError("a time before the trace began")
    return value
