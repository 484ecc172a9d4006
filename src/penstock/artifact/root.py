"""The default folder of artifacts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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
