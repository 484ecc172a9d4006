"""Traces of requests, read and written: files of a :class:`TraceLine` in JSON a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.errors import ConfigError, PenstockError
from penstock.workload.requests import ObservedRequests
from penstock.workload.trace_line import TraceLine

_LINES: Final = 1000
"""Lines of a piece that is encoded at once: some milliseconds of work."""


def read_lines(path: Path) -> Iterator[tuple[int, TraceLine]]:
    """The lines of a trace with their numbers, from 1 on; empty ones are left out.

    Raises ConfigError for what is no line of a trace, and OSError.
    """
    decoder = msgspec.json.Decoder(TraceLine)
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            where = f"{path}, line {number}"
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{where} is not of Mooncake's form: {error}; remove it, or repair it"
                ) from None
            _check(where, line)
            yield number, line


def _check(where: str, line: TraceLine) -> None:
    blocks = -(-line.input_length // line.block_size)
    if line.hash_ids is not None and len(line.hash_ids) != blocks:
        raise ConfigError(
            f"{where}: {line.input_length} tokens have {len(line.hash_ids)} hash ids, not one per "
            f"{line.block_size} tokens"
        )


def encoded(requests: ObservedRequests, since: float = -np.inf) -> Iterator[bytes]:
    """Requests that arrived at ``since`` or later as a trace, in pieces of many lines.

    Times are from the first of these on, and blocks have numbers from 0 on in the order in which
    they occur, whatever stood before them.
    """
    requests = requests.since(since)
    if not len(requests):
        return
    began, unshared = float(requests.arrived[0]), int(requests.blocks.max(initial=-1)) + 1
    encoder = msgspec.json.Encoder()
    for start in range(0, len(requests), _LINES):
        lines = requests.lines(start, min(start + _LINES, len(requests)), began, unshared)
        yield encoder.encode_lines(lines)


def coarser(pieces: Iterable[bytes], block: int) -> Iterator[bytes]:
    """A trace with blocks of ``block`` tokens in place of smaller ones, in pieces.

    A number stands for all that is before its block, too, so that of each larger block is the one
    of the last smaller block in it. Raises ConfigError unless ``block`` is a multiple of the
    trace's.
    """
    for piece in pieces:
        yield from encoded_lines([_coarser(line, block) for line in decoded([piece])])


def decoded(pieces: Iterable[bytes]) -> Iterator[TraceLine]:
    """The lines of a trace that a server has sent, in pieces of whole lines. Raises PenstockError
    for what is no such line."""
    decoder = msgspec.json.Decoder(TraceLine)
    for piece in pieces:
        for text in piece.splitlines():
            try:
                yield decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise PenstockError(
                    f"a line of the server's trace is of another version of Penstock: {error}; use "
                    "that of the server"
                ) from None


def encoded_lines(lines: Sequence[TraceLine]) -> Iterator[bytes]:
    """The lines in JSON, in pieces of many."""
    encoder = msgspec.json.Encoder()
    for start in range(0, len(lines), _LINES):
        yield encoder.encode_lines(lines[start : start + _LINES])


def _coarser(line: TraceLine, block: int) -> TraceLine:
    if block % line.block_size:
        raise ConfigError(
            f"blocks of {block} tokens cannot be made of blocks of {line.block_size}; give a "
            f"multiple of {line.block_size}"
        )
    size = block // line.block_size
    ids = line.hash_ids or []
    answered = [*ids[: line.input_length // line.block_size], *(line.answer_ids or ())]
    full = line.input_length // block
    coarse = answered[size - 1 :: size]
    return msgspec.structs.replace(
        line,
        hash_ids=[*coarse[:full], *(ids[-1:] if line.input_length % block else ())],
        answer_ids=coarse[full:] or None,
        block_size=block,
    )
