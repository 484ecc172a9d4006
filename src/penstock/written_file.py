"""Writes files whose errors name them, as those of opening a file do and those of writing do not:
a full disk is noticed by the latter alone. And has names of files survive a loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from penstock.errors import ConfigError


def check_writable(option: str, path: Path) -> None:
    """Raise ConfigError, which names the option, unless a file can be written at ``path``, which
    stays as it is."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder; name a file in it")
    was_there = os.path.lexists(path)
    try:
        # Permissions do not tell: file systems refuse what they allow.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
        if not was_there:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written: {error.strerror}; name a file elsewhere"
        ) from error


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


def sync_folder(path: Path) -> None:
    """Sync the folder ``path``, so that files created or renamed in it survive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
