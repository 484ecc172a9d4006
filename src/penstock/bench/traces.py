"""Published traces of requests: how long they are, and which prefixes they share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from penstock.errors import ConfigError
from penstock.workload.csv_trace import CsvTrace
from penstock.workload.trace import read_lines
from penstock.workload.trace_line import MOONCAKE_BLOCK


@dataclass(frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int


class HashedRequest(msgspec.Struct, frozen=True):
    """One line of a Mooncake trace; ``hash_ids[i]`` stands for prompt tokens ``block`` i and on."""

    input_length: int
    output_length: int
    hash_ids: list[int]
    block: int = MOONCAKE_BLOCK


def read_lengths(path: Path, limit: int | None = None, scale: float = 1.0) -> list[Lengths]:
    """Lengths of the first ``limit`` requests of a trace, times ``scale`` but at least 1.

    ``.csv`` is Azure's or BurstGPT's; any other file is of Mooncake's form. Requests without a
    prompt or an answer are left out: there is nothing to run. Raises ConfigError for what is no
    trace, and OSError.
    """
    if path.suffix == ".csv":
        found = [Lengths(each.prompt, each.output) for each in CsvTrace.read(path, limit).requests]
    else:
        lines = (Lengths(line.input_length, line.output_length) for _, line in read_lines(path))
        found = list(islice((each for each in lines if each.prompt and each.output), limit))
    if not found:
        raise ConfigError(f"{path} holds no request with a prompt and an answer")
    return [
        Lengths(max(1, round(each.prompt * scale)), max(1, round(each.output * scale)))
        for each in found
    ]


def read_mooncake(path: Path, limit: int | None = None) -> list[HashedRequest]:
    """The first ``limit`` requests of a trace of Mooncake's form, all with blocks of one size.

    Raises ConfigError for a file of another shape, or without any request, and OSError.
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
    if not requests:
        raise ConfigError(f"{path} holds no request")
    return requests
