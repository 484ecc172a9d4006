"""How fast prefixes were read and computed, for the next engine of the kind to begin with."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

VERSION: Final = 1
RATES: Final = "rates.json"
_MOST_FILE_BYTES: Final = 4096


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine has measured."""

    threads: int
    """Those that it computed with: with others its rate is another one."""
    bandwidth: float | None = None
    """Bytes of blocks that came in a second; None: none came."""
    rate: float | None = None
    """Tokens of prompts that were computed in a second; None: none were."""
    version: int = VERSION


def read_rates(folder: Path, threads: int) -> Rates:
    """What was measured by the engine that ended last in the folder of a kind; nothing where that
    is not known, was by other threads, or is no rate."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        fd = os.open(folder / RATES, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            rates = msgspec.json.decode(file.read(_MOST_FILE_BYTES), type=Rates)
        given = [each for each in (rates.bandwidth, rates.rate) if each is not None]
        sound = all(math.isfinite(each) and each > 0 for each in given)
        if sound and (rates.version, rates.threads) == (VERSION, threads):
            return rates
    return Rates(threads=threads)


def write_rates(folder: Path, rates: Rates) -> None:
    """Leave them for the next one. Raises OSError."""
    new = folder / f".{RATES}.{secrets.token_hex(4)}"
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(rates))
        new.rename(folder / RATES)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
