from __future__ import annotations

import os
import tempfile

import pytest

_CACHE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """No test may touch the user's cache, nor the processes that tests start."""
    config.stash[_CACHE] = tempfile.TemporaryDirectory(prefix="penstock-cache-")
    os.environ["PENSTOCK_CACHE_DIR"] = config.stash[_CACHE].name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_CACHE].cleanup()
