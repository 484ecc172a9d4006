"""The default folder of artifacts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import ConfigError

ENVIRONMENT = "PENSTOCK_CACHE_DIR"


def default_root(environ: Mapping[str, str] = os.environ) -> Path | None:
    """``engines`` in $PENSTOCK_CACHE_DIR, else in the user's cache folder ($XDG_CACHE_HOME).

    None for a user without a home folder.
    """
    if named := environ.get(ENVIRONMENT):
        return Path(os.path.abspath(os.path.expanduser(named))) / "engines"
    cache = environ.get("XDG_CACHE_HOME", "")
    home = cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")
    return Path(home) / "penstock" / "engines" if os.path.isabs(home) else None


def asked_root(asked: str | None) -> tuple[str | None, str]:
    """The folder that is asked for, or else the default one, if there is any; and why it is that.
    Raises ConfigError."""
    if asked is not None:
        if not asked:
            raise ConfigError("artifact_dir is empty; name a folder, or set artifact to false")
        return os.path.abspath(os.path.expanduser(asked)), "as asked"
    root = default_root()
    if root is None:
        return None, "there is no home folder; name one with artifact_dir"
    return str(root), "the default"
