"""Observed requests as columns, which summaries and traces are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError
from penstock.workload.observation import ENDPOINTS, ENDS, HEAD_BYTES, blocks_of
from penstock.workload.prefix_hashes import BLOCK
from penstock.workload.ring import Kept
from penstock.workload.trace_line import TraceLine

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNKNOWN: Final = -1
"""What stands in a column of whole numbers for what a trace does not say."""

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

_HEADS: Final = np.dtype(
    [
        ("arrived", "<f8"),
        ("first_token_s", "<f4"),
        ("duration_s", "<f4"),
        ("prompt", "<u4"),
        ("cached", "<u4"),
        ("output", "<u4"),
        ("all_output", "<u4"),
        ("sequences", "<u2"),
        ("endpoint", "u1"),
        ("end", "u1"),
    ]
)
"""The packed form of :class:`~penstock.workload.observation.Observation`, without its hashes."""


@dataclass(frozen=True)
class ObservedRequests:
    """Requests in the order of their arrivals; each field is a column of as many rows.

    Times are in seconds, NaN where they are unknown, and whole numbers are then ``UNKNOWN``.
    """

    arrived: Floats
    """Times from any beginning on."""
    first_token_s: Floats
    duration_s: Floats
    prompt: Ints
    cached: Ints
    output: Ints
    all_output: Ints
    sequences: Ints
    endpoint: Ints
    """Places in ``ENDPOINTS``."""
    end: Ints
    """Places in ``ENDS``."""
    block: int
    """Tokens of a block."""
    starts: Ints
    """Where each request's blocks begin in ``blocks``; one more than there are requests."""
    blocks: Ints
    """Numbers of blocks, equal where beginnings are equal, in the order in which they first occur:
    for each request those of its prompt that are full, then those that its answer fills."""
    has_blocks: bool
    """Whether the source says which prompts begin alike."""
    forgotten: int = 0
    """Requests before these that were not kept."""

    def __len__(self) -> int:
        return len(self.prompt)

    @cached_property
    def prompt_blocks(self) -> Ints:
        """How many of a request's blocks are full ones of its prompt."""
        held = np.diff(self.starts)
        return np.minimum(self.prompt // self.block, held)

    @classmethod
    def kept(cls, kept: Kept) -> ObservedRequests:
        """What a server has kept."""
        records = kept.records
        heads = np.frombuffer(b"".join([each[:HEAD_BYTES] for each in records]), _HEADS)
        order = np.argsort(heads["arrived"], kind="stable")
        heads = heads[order]
        places = order.tolist()
        hashes = np.frombuffer(b"".join([records[i][HEAD_BYTES:] for i in places]), "<u8")

        def seconds(name: str) -> Floats:
            return heads[name].astype(np.float64)

        def whole(name: str) -> Ints:
            return heads[name].astype(np.int64)

        return cls(
            arrived=seconds("arrived"),
            first_token_s=seconds("first_token_s"),
            duration_s=seconds("duration_s"),
            prompt=whole("prompt"),
            cached=whole("cached"),
            output=whole("output"),
            all_output=whole("all_output"),
            sequences=whole("sequences"),
            endpoint=whole("endpoint"),
            end=whole("end"),
            block=BLOCK,
            starts=_starts([blocks_of(records[i]) for i in places]),
            blocks=_numbered(hashes),
            has_blocks=True,
            forgotten=kept.forgotten,
        )

    @classmethod
    def of_trace(cls, lines: Sequence[TraceLine]) -> ObservedRequests:
        """The requests of a trace. Raises ConfigError where blocks differ in size, or some lines
        alone have times."""
        has_blocks = all(line.hash_ids is not None for line in lines)
        sizes = {line.block_size for line in lines} if has_blocks else {BLOCK}
        timed = sum(line.timestamp is not None for line in lines)
        if len(sizes) > 1:
            raise ConfigError(
                "lines of the trace have blocks of different sizes "
                f"({', '.join(map(str, sorted(sizes)))} tokens), which cannot be compared; "
                "observe them one by one"
            )
        if timed not in (0, len(lines)):
            raise ConfigError(
                f"{timed} of {len(lines)} lines of the trace have a timestamp; give all or none one"
            )
        (block,) = sizes or {BLOCK}
        arrived = np.array([(line.timestamp or 0.0) / 1e3 for line in lines], np.float64)
        order = np.argsort(arrived, kind="stable").tolist()
        lines = [lines[i] for i in order]
        held = [_full_blocks(line) if has_blocks else [] for line in lines]
        flat = np.array([each & _MASK for ids in held for each in ids], np.uint64)
        return cls(
            arrived=arrived[order] if timed else np.full(len(lines), np.nan),
            first_token_s=_seconds([line.first_token_ms for line in lines]),
            duration_s=_seconds([line.duration_ms for line in lines]),
            prompt=_whole([line.input_length for line in lines]),
            cached=_whole([line.cached_tokens for line in lines]),
            output=_whole([line.output_length for line in lines]),
            all_output=_whole([line.output_length * line.sequences for line in lines]),
            sequences=_whole([line.sequences for line in lines]),
            endpoint=_whole([_place(ENDPOINTS, line.endpoint) for line in lines]),
            end=_whole([_place(ENDS, line.finish_reason) for line in lines]),
            block=block,
            starts=_starts([len(ids) for ids in held]),
            blocks=_numbered(flat),
            has_blocks=has_blocks,
        )

    def since(self, earliest: float) -> ObservedRequests:
        """The requests that arrived at ``earliest`` or later; their blocks are numbered anew."""
        first = 0 if np.isneginf(earliest) else int(np.searchsorted(self.arrived, earliest))
        if not first:
            return self
        cut = int(self.starts[first])
        columns = {name: getattr(self, name)[first:] for name in _COLUMNS}
        return replace(
            self,
            **columns,
            starts=self.starts[first:] - cut,
            blocks=_numbered(self.blocks[cut:]),
            forgotten=self.forgotten + first,
        )

    def lines(self, first: int, last: int, began: float, unshared: int) -> Iterator[TraceLine]:
        """The requests from ``first`` to before ``last`` as lines of a trace.

        ``began`` is the trace's beginning. Blocks that are not full are nobody else's: they get
        numbers from ``unshared`` on, each its own, by the request's place.
        """
        for i in range(first, last):
            start, end = int(self.starts[i]), int(self.starts[i + 1])
            middle = start + int(self.prompt_blocks[i])
            prompt = int(self.prompt[i])
            ids: list[int] = self.blocks[start:middle].tolist()
            if len(ids) * self.block < prompt:
                ids.append(unshared + i)
            yield TraceLine(
                input_length=prompt,
                output_length=int(self.output[i]),
                timestamp=round(float(self.arrived[i] - began) * 1e3, 3),
                hash_ids=ids,
                block_size=self.block,
                answer_ids=self.blocks[middle:end].tolist() or None,
                cached_tokens=_known(self.cached[i]),
                first_token_ms=_milliseconds(self.first_token_s[i]),
                duration_ms=_milliseconds(self.duration_s[i]),
                endpoint=_name(ENDPOINTS, self.endpoint[i]),
                finish_reason=_name(ENDS, self.end[i]),
                sequences=max(1, int(self.sequences[i])),
            )


_COLUMNS: Final = tuple(name for name in _HEADS.names or ())


def _full_blocks(line: TraceLine) -> list[int]:
    full = line.input_length // line.block_size
    return [*(line.hash_ids or ())[:full], *(line.answer_ids or ())]


def _numbered(hashes: npt.NDArray[np.uint64] | Ints) -> Ints:
    """The same in numbers from 0 on, in the order in which values first occur."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    found: Ints = numbers[inverse.reshape(-1)]
    return found


def _starts(counts: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _whole(values: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], np.int64)


def _seconds(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value / 1e3 for value in values], np.float64)


def _place(names: Sequence[str], name: str | None) -> int | None:
    return names.index(name) if name in names else None


def _name(names: Sequence[str], place: np.int64) -> str | None:
    return names[int(place)] if 0 <= place < len(names) else None


def _known(value: np.int64) -> int | None:
    return None if value == UNKNOWN else int(value)


def _milliseconds(seconds: np.float64) -> float | None:
    return None if np.isnan(seconds) else round(float(seconds) * 1e3, 3)
