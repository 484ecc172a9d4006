"""What holds for every test: a cache of its own, one thread for an array library, and workers.

The whole suite (``pytest``) runs on as many workers as this process may use cores, at most four;
files and folders that are named (``pytest tests/engine``) run in this process alone, as a debugger
needs it. ``-n`` overrides both.
"""

from __future__ import annotations

import os
import tempfile

import pytest

_CACHE = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
_MOST_WORKERS = 4
"""Beyond it each worker's imports, collection and servers cost more than it takes off."""

# Before NumPy and torch are imported, here and in processes that tests start. Arrays are small:
# more threads only wait for each other, most of all beside other workers. Penstock's own threads
# do not read these.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the options
def pytest_cmdline_main(config: pytest.Config) -> None:
    option = config.option
    if (
        config.pluginmanager.hasplugin("xdist")
        and not hasattr(config, "workerinput")
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and option.numprocesses is None
        and option.dist == "no"
        and not option.usepdb
    ):
        workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
        option.numprocesses = workers if workers > 1 else 0
        # Each worker begins with an equal run of neighbours, which share their fixtures.
        option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """No test may touch the user's cache, nor the processes that tests start."""
    config.stash[_CACHE] = tempfile.TemporaryDirectory(prefix="penstock-cache-")
    os.environ["PENSTOCK_CACHE_DIR"] = config.stash[_CACHE].name


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_CACHE].cleanup()
