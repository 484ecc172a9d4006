"""Small work on files and folders."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path


def plain(text: str) -> str:
    """``text`` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:64] or "model"


def remove_tree(path: Path) -> None:
    """Remove what is at ``path``, of whatever kind, if there is something."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync_folder(path: Path) -> None:
    """Make what was created and renamed in ``path`` outlast a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
