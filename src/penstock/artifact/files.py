"""Helpers for files and folders."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import stat
from pathlib import Path

from penstock.errors import ArtifactError


def plain(text: str) -> str:
    """``text`` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:64] or "model"


def size(count: int) -> str:
    """Bytes, for people."""
    return f"{count / 1e9:.2f} GB" if count >= 1e7 else f"{count:,} bytes"


def remove_tree(path: Path) -> None:
    """Remove what is at ``path``, of whatever kind, if there is something."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def require_trusted(fd: int, name: str) -> None:
    """Raise ArtifactError unless this user or root alone can have written what is open as ``fd``.

    Packed weights are a model's behaviour: from somebody else they might be anything.
    """
    status = os.fstat(fd)
    if status.st_uid not in (os.geteuid(), 0):
        raise ArtifactError(f"{name} belongs to {_user(status.st_uid)}, neither to you nor to root")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ArtifactError(
            f"{name} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); "
            "`chmod go-w` it if it is yours"
        )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
