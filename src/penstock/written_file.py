"""Writes files whose errors name them, as those of opening a file do and those of writing do not:
a full disk is noticed by the latter alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec


def write_bytes(path: Path, data: bytes) -> None:
    """Make ``data`` the content of a file. Raises OSError with its name."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, document: object) -> None:
    """Make an indented JSON document the content of a file. Raises OSError with its name."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Make ``pieces`` the content of a file as they come. Raises OSError with its name; where they
    end early, with an error of their own, the file ends, too."""
    with path.open("wb") as file:
        for piece in pieces:
            try:
                file.write(piece)
                file.flush()
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
