"""The terminal that a stream writes to."""

from __future__ import annotations

import os
import shutil
from typing import TextIO


def columns(stream: TextIO) -> int:
    """The width of the stream's terminal; where it is none, that of the process's, or 80."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return found or shutil.get_terminal_size().columns
