"""Removes the names of folders from what is reported of a machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_FOLDERS = re.compile(r"(?<![\w.:/-])(?:~|[A-Za-z]:)?[/\\](?:[^\s'\"/\\:,;()]+[/\\])+")


def without_folders(text: str) -> str:
    """``text`` with absolute paths cut down to their last parts."""
    return _FOLDERS.sub("", text)


def redacted_command(program: str, arguments: Sequence[str]) -> str:
    """A command that can be repeated elsewhere, where paths differ."""
    parts = []
    for argument in arguments:
        option, sign, value = argument.partition("=")
        shown = without_folders(value) if sign else without_folders(option)
        parts.append(f"{option}={shown}" if sign else shown)
    return shlex.join(["python", program, *parts])
