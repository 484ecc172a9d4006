"""Published traces of requests, replayed: Azure's, BurstGPT's, and those of Mooncake's form.

All are scaled: lengths by one factor, times by another. What cannot be replayed (no prompt, no
answer) is left out and counted; what is no trace is refused with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.bench.load.turn import Conversation, Piece, Turn
from penstock.bench.load.workload import RecordedWorkload
from penstock.errors import ConfigError
from penstock.workload.csv_trace import CsvTrace
from penstock.workload.trace import read_lines
from penstock.workload.trace_line import TraceLine

_TRACE, _OWN = 4, 5


@dataclass(frozen=True)
class TraceScale:
    """How a trace is replayed."""

    lengths: float = 1.0
    speed: float = 1.0
    """Times as fast as it was recorded."""

    def tokens(self, count: int) -> int:
        return max(1, round(count * self.lengths))


def read_trace(path: Path, scale: TraceScale, limit: int | None = None) -> RecordedWorkload:
    """The first ``limit`` requests of a trace, by the form of the file.

    ``.csv`` is Azure's or BurstGPT's, by its columns; any other file is of Mooncake's form. Times
    are from the first request on; requests are sorted by them. Raises ConfigError and OSError.
    """
    if path.suffix == ".csv":
        trace = CsvTrace.read(path, limit)
        name, left_out = trace.name, trace.left_out
        requests = sorted(trace.requests, key=lambda each: each.at_s)
        start = requests[0].at_s
        conversations = [
            Conversation(
                str(index),
                (
                    Turn(
                        (Piece((_OWN, index), scale.tokens(each.prompt)),),
                        scale.tokens(each.output),
                        whole=True,
                    ),
                ),
                (each.at_s - start) / scale.speed,
            )
            for index, each in enumerate(requests)
        ]
    else:
        name = "mooncake"
        conversations, left_out = _read_lines(path, scale, limit)
    about: tuple[tuple[str, object], ...] = (
        ("file", path.name),
        ("scale", scale.lengths),
        ("speed", scale.speed),
        ("left_out", left_out),
    )
    return RecordedWorkload(name, tuple(conversations), about)


def is_trace(path: Path) -> bool:
    """Whether a file is a trace rather than one of prompts. Raises OSError."""
    if path.suffix == ".csv":
        return True
    with path.open("rb") as file:
        first = next((line for line in file if line.strip()), b"")
    return b'"input_length"' in first


def _read_lines(path: Path, scale: TraceScale, limit: int | None) -> tuple[list[Conversation], int]:
    sessions: dict[str, list[TraceLine]] = {}
    left_out = taken = 0
    for number, line in read_lines(path):
        if limit is not None and taken == limit:
            break
        if not line.input_length or not line.output_length:
            left_out += 1
            continue
        taken += 1
        key = f"line {number}" if line.session_id is None else f"session {line.session_id}"
        sessions.setdefault(key, []).append(line)
    if not sessions:
        raise ConfigError(f"{path} holds no request with a prompt and an answer")
    begun = [lines[0].timestamp for lines in sessions.values()]
    timed = [time for time in begun if time is not None]
    if timed and len(timed) < len(begun):
        raise ConfigError(
            f"{path}: {len(timed)} of {len(begun)} conversations have a timestamp in their first "
            "line; give all or none one"
        )
    first = min(timed, default=0.0)
    found = [
        Conversation(
            name,
            _turns(f"{path}, {name}", index, lines, scale),
            None
            if lines[0].timestamp is None
            else (lines[0].timestamp - first) / 1e3 / scale.speed,
        )
        for index, (name, lines) in enumerate(sessions.items())
    ]
    return sorted(found, key=lambda each: each.at_s or 0.0), left_out


def _turns(where: str, index: int, lines: list[TraceLine], scale: TraceScale) -> tuple[Turn, ...]:
    """The turns of one session: those without ``hash_ids`` add to what was said before, the others
    have whole prompts of their own."""
    places: dict[str | int, int] = {}
    turns = []
    for place, line in enumerate(lines):
        after = tuple(_places(where, line, places)) if line.after is not None else ()
        if line.after is None and place:
            after = (place - 1,)
        grows = line.hash_ids is None and bool(after)
        content = (
            (Piece((_OWN, index, place), scale.tokens(line.input_length)),)
            if line.hash_ids is None
            else tuple(_blocks(line.hash_ids, line, scale))
        )
        turns.append(
            Turn(
                content,
                scale.tokens(line.output_length),
                after=after,
                delay_s=(line.delay if place else 0.0) / 1e3 / scale.speed,
                continues=after[0] if grows else None,
                whole=not grows,
            )
        )
        if line.id is not None:
            places[line.id] = place
    return tuple(turns)


def _places(where: str, line: TraceLine, places: Mapping[str | int, int]) -> Iterator[int]:
    for name in line.after or ():
        if name not in places:
            raise ConfigError(
                f"{where}: a turn is after {name!r}, and no earlier line of its session has that id"
            )
        yield places[name]


def _blocks(hash_ids: list[int], line: TraceLine, scale: TraceScale) -> Iterator[Piece]:
    """A prompt in blocks, so that equal ids are equal text, and shared prefixes are shared."""
    left = scale.tokens(line.input_length)
    block = scale.tokens(line.block_size)
    for place, name in enumerate(hash_ids):
        last = place == len(hash_ids) - 1
        size = left if last else min(block, left)
        if size <= 0:
            return
        yield Piece((_TRACE, name & 0xFFFFFFFFFFFFFFFF), size)
        left -= size
