"""What holds for every test: a cache of its own, one thread for an array library, and workers.

The whole suite (``pytest``) runs on one more worker than this process may use cores, at most four,
without the tests that are marked ``slow``; ``--slow`` adds these. Files and folders that are named
(``pytest tests/engine``) run whole and in this process alone, as a debugger needs it. ``-m`` and
``-n`` override this.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import tempfile
from collections.abc import Generator

import hypothesis
import pytest

pytest_plugins = ["pytester", "support.always_read", "support.no_skips", "support.thinned"]

_FOLDERS = pytest.StashKey[contextlib.ExitStack]()
_MOST_WORKERS = 4
"""Beyond it each worker's imports, collection and servers cost more than it takes off."""

# Before NumPy and torch are imported, here and in processes that tests start. Arrays are small:
# more threads only wait for each other, most of all beside other workers. Penstock's own threads
# do not read these.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Times of examples say how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

# What a shell starts in the background inherits an ignored SIGINT; tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help="run the slow tests of the whole suite, too"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the options
def pytest_cmdline_main(config: pytest.Config) -> None:
    option = config.option
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    if not option.markexpr and not option.slow:
        option.markexpr = "not slow"
    if (
        config.pluginmanager.hasplugin("xdist")
        and not hasattr(config, "workerinput")
        and option.numprocesses is None
        and option.dist == "no"
        and not option.usepdb
    ):
        cores = os.cpu_count() or 1
        if hasattr(os, "sched_getaffinity"):
            cores = len(os.sched_getaffinity(0))
        # One more than cores: many tests wait, for clients that stall and processes that start.
        option.numprocesses = min(cores + 1, _MOST_WORKERS) if cores > 1 else 0
        # Each worker begins with an equal run of neighbours, which share their fixtures.
        option.dist = "worksteal"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What comes, torch and tests by the thousand, stays: garbage need not be searched for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """No later search need go through it, either."""
    gc.collect()
    gc.freeze()
    # Or native modules would report what the end of the process leaves as leaks.
    atexit.register(gc.unfreeze)


def pytest_configure(config: pytest.Config) -> None:
    """No test may touch the user's cache, nor the processes that tests start. All workers share the
    folder of checkpoints that are made."""
    with contextlib.ExitStack() as folders:
        named = {"PENSTOCK_CACHE_DIR": "penstock-cache-"}
        if not hasattr(config, "workerinput"):
            named["PENSTOCK_TEST_CHECKPOINTS"] = "penstock-checkpoints-"
        for name, prefix in named.items():
            os.environ[name] = folders.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
        config.stash[_FOLDERS] = folders.pop_all()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_FOLDERS].close()
