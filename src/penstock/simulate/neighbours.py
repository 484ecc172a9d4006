"""Engines that compute beside the one that is measured, on other cores of this machine.

Where several engines share a machine, or the stages of one, each has cores of its own, but they
share memory and its caches, and what a hypervisor gives them: a step may take twice as long beside
others as alone.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from penstock.config import EngineConfig
from penstock.errors import ConfigError, PenstockError
from penstock.hardware import detect
from penstock.threads import choose_threads

READY: Final = b"ready\n"
"""What a neighbour writes before its first step."""


def check_neighbours(config: EngineConfig, count: int) -> None:
    """Raise ConfigError where so many neighbours of an engine have no cores."""
    if not count:
        return
    hardware = detect()
    threads = choose_threads(config.threads, hardware).count
    if isinstance(config.threads, str) and not config.threads.strip().isdecimal():
        raise ConfigError(
            f"threads {config.threads} are those of one engine, and {count} more are to run "
            "beside it; give their number"
        )
    if (count + 1) * threads > hardware.physical_cores:
        raise ConfigError(
            f"{count + 1} engines of {threads} threads need {(count + 1) * threads} cores, and "
            f"there are {hardware.physical_cores}; take fewer threads or neighbours"
        )


@contextmanager
def running(config: EngineConfig, count: int) -> Iterator[None]:
    """Have so many engines compute meanwhile. Raises PenstockError if one does not start."""
    with ExitStack() as stack:
        started = [stack.enter_context(_neighbour(config)) for _ in range(count)]
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != READY:
                raise PenstockError(
                    "an engine that was to run beside the measured one did not start; its "
                    "messages are above"
                )
        yield


@contextmanager
def _neighbour(config: EngineConfig) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "penstock.simulate.neighbour"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            process.stdin.close()
            yield process
        finally:
            process.kill()
