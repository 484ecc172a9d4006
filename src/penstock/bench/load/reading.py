"""Reads documents of load tests, which somebody else may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from penstock.bench.load.document import VERSION, LoadReport
from penstock.errors import ConfigError, shown
from penstock.regular_file import read_regular

_MOST: Final = 4 << 30
"""Bytes of a document; a chunk that was received takes about seven."""
_HOW: Final = "'penstock bench serve URL --json FILE' writes one"


class _Kind(msgspec.Struct):
    benchmark: object = None
    evaluation: object = None
    version: object = None


def read_report(path: Path) -> LoadReport:
    """The document of a load test. Raises ConfigError for what is none, or is of another version,
    and OSError where the file cannot be read."""
    text = read_regular(path, _MOST)
    if not text.strip():
        raise ConfigError(f"{path} is empty; {_HOW}")
    try:
        kind = msgspec.json.decode(text, type=_Kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no result of a load test: {error}; {_HOW}") from error
    if kind.benchmark != "serve":
        other = kind.benchmark or kind.evaluation
        of = f"a result of {shown(other)}" if other else "no result of Penstock's"
        raise ConfigError(f"{path} is {of}, not of a load test; {_HOW}")
    if not isinstance(kind.version, int) or isinstance(kind.version, bool):
        raise ConfigError(f"{path} says of no version that is a number; {_HOW}")
    if kind.version != VERSION:
        fix = "update Penstock" if kind.version > VERSION else "measure again"
        raise ConfigError(
            f"{path} has version {kind.version} of the format, and this Penstock reads {VERSION}; "
            f"{fix}"
        )
    try:
        report = msgspec.json.decode(text, type=LoadReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}; measure again") from error
    if not report.runs:
        raise ConfigError(f"{path} has no runs: it was stopped before the first; measure again")
    return report
