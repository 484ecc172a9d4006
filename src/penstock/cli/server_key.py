"""The key of a server that a command asks."""

from __future__ import annotations

import os

from penstock.cli.parser import UsageError


def server_key(variable: str | None, default: str) -> str | None:
    """The key in the environment variable that ``--api-key-env`` names, or in the default one, if
    that is there. Raises UsageError where the one that was named is not."""
    if variable is None:
        return os.environ.get(default)
    if not os.environ.get(variable):
        raise UsageError(f"argument --api-key-env: there is no environment variable {variable}")
    return os.environ[variable]
