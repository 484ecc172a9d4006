"""Published traces of requests: how long they are, and which prefixes they share."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from penstock.errors import ConfigError
from penstock.workload.trace import read_lines
from penstock.workload.trace_line import MOONCAKE_BLOCK


@dataclass(frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int


class _Line(msgspec.Struct):
    """What a line of a Mooncake trace says of lengths."""

    input_length: int
    output_length: int


class HashedRequest(msgspec.Struct, frozen=True):
    """One line of a Mooncake trace; ``hash_ids[i]`` stands for prompt tokens ``block`` i and on."""

    input_length: int
    output_length: int
    hash_ids: list[int]
    block: int = MOONCAKE_BLOCK


def read_lengths(path: Path, limit: int | None = None, scale: float = 1.0) -> list[Lengths]:
    """Lengths of the first ``limit`` requests of a trace, times ``scale`` but at least 1.

    ``.csv``: the columns ContextTokens and GeneratedTokens (Azure's LLM inference traces).
    ``.jsonl``: the fields input_length and output_length (Mooncake's traces).
    Requests without a prompt or an output are left out: there is nothing to run. Raises
    ConfigError where the file is neither, and OSError.
    """
    found: list[Lengths] = []
    with path.open(encoding="utf-8", newline="") as file:
        try:
            if path.suffix == ".csv":
                rows = (
                    (int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                    for row in csv.DictReader(file)
                )
            else:
                decoder = msgspec.json.Decoder(_Line)
                lines = (decoder.decode(line) for line in file if line.strip())
                rows = ((line.input_length, line.output_length) for line in lines)
            for prompt, output in rows:
                if limit is not None and len(found) == limit:
                    break
                if prompt > 0 and output > 0:
                    found.append(
                        Lengths(max(1, round(prompt * scale)), max(1, round(output * scale)))
                    )
        except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{path}: not a request trace ({error!r}); a .csv needs the columns ContextTokens "
                "and GeneratedTokens, a .jsonl the fields input_length and output_length"
            ) from None
    if not found:
        raise ConfigError(f"{path}: holds no request with a prompt and an output")
    return found


def read_mooncake(path: Path, limit: int | None = None) -> list[HashedRequest]:
    """The first ``limit`` requests of a trace of Mooncake's form, all with blocks of one size.

    Raises ConfigError for a file of another shape.
    """
    requests: list[HashedRequest] = []
    for number, line in islice(read_lines(path), limit):
        if line.hash_ids is None:
            raise ConfigError(
                f"{path}, line {number} has no hash_ids, by which prompts share prefixes"
            )
        found = HashedRequest(line.input_length, line.output_length, line.hash_ids, line.block_size)
        if requests and found.block != requests[0].block:
            raise ConfigError(
                f"{path}, line {number} has blocks of {found.block} tokens, and lines before it of "
                f"{requests[0].block}; replay them as two traces"
            )
        requests.append(found)
    return requests
