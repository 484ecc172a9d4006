"""Reads the small files of ``/proc`` and ``/sys``, and takes none of them at its word.

Containers hide such files, virtual machines make them up, and old kernels lack them: what cannot be
read, or is no number that could be meant, is nothing (None, or an empty set), never an exception.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

MOST_CPUS: Final = 1 << 16
"""A number of CPUs that no kernel reaches; keeps a list such as ``0-4294967295`` from being written
out."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,9})([KMG])", re.ASCII)
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_text(path: Path) -> str | None:
    """The file's text without white space around it; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_number(text: str) -> int | None:
    """The whole number that ``text`` is; None for anything else, and for more than 19 digits."""
    return int(text) if _NUMBER.fullmatch(text) else None


def read_number(path: Path) -> int | None:
    """The whole number that the file holds, as :func:`parse_number` takes it."""
    return parse_number(read_text(path) or "")


def read_size(path: Path) -> int | None:
    """Bytes that the file gives as ``48K``, ``2M`` or ``1G``; None for none, and for 0."""
    match = _SIZE.fullmatch(read_text(path) or "")
    return None if match is None else int(match[1]) * _UNITS[match[2]] or None


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs of the kernel's list format: ``"0-3,8"`` is {0, 1, 2, 3, 8}. Parts that are no range of
    numbers below :data:`MOST_CPUS` are left out."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is not None and int(match[2] or match[1]) < MOST_CPUS:
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def read_cpu_list(path: Path) -> frozenset[int]:
    """CPUs of a file in that format; none where it cannot be read."""
    return parse_cpu_list(read_text(path) or "")


def read_entry(path: Path, key: str) -> int | None:
    """The number behind ``key`` in a file of lines ``key number``; None where there is none."""
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return parse_number(value.strip())
    return None
