"""Published traces of requests: how long they are, and which prefixes they share."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from penstock.errors import ConfigError

_MOONCAKE_BLOCK = 512  # tokens per hash id in the trace


@dataclass(frozen=True)
class Lengths:
    """Tokens of one request."""

    prompt: int
    output: int


class HashedRequest(msgspec.Struct, frozen=True):
    """One line of a Mooncake trace; ``hash_ids[i]`` stands for prompt tokens 512 i and on."""

    input_length: int
    output_length: int
    hash_ids: list[int]


def read_azure(path: Path, limit: int | None = None) -> list[Lengths]:
    """The first ``limit`` requests of an Azure trace (CSV: time, ContextTokens, GeneratedTokens).

    Raises ConfigError for a file of another shape.
    """
    with path.open(newline="") as file:
        try:
            return [
                Lengths(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
                for row in islice(csv.DictReader(file), limit)
            ]
        except (KeyError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} is not an Azure LLM trace: it needs whole numbers in the columns "
                f"ContextTokens and GeneratedTokens ({error!r})"
            ) from error


def read_mooncake(path: Path, limit: int | None = None) -> list[HashedRequest]:
    """The first ``limit`` requests of a Mooncake trace (one JSON object a line).

    Raises ConfigError for a file of another shape.
    """
    decoder = msgspec.json.Decoder(HashedRequest)
    with path.open("rb") as file:
        requests = []
        for number, line in enumerate(islice(file, limit), 1):
            try:
                request = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ConfigError(
                    f"{path}:{number} is not a line of a Mooncake trace: {error}"
                ) from error
            if len(request.hash_ids) != -(-request.input_length // _MOONCAKE_BLOCK):
                raise ConfigError(
                    f"{path}:{number}: {request.input_length} tokens have "
                    f"{len(request.hash_ids)} hash ids, not one per {_MOONCAKE_BLOCK} tokens"
                )
            requests.append(request)
        return requests
