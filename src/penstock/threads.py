"""Decides the number of compute threads and their CPUs, by the ``threads`` option."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from penstock.errors import ConfigError, shown
from penstock.hardware import Hardware

MOST_PER_CPU = 4
"""Limit of threads for each logical CPU; more are taken for a mistake."""

_MOST_CPU = 1 << 16
"""A number of CPUs that no kernel reaches; keeps ``0-999999999`` from being written out."""


_COUNT = re.compile(r"-?[0-9]{1,18}", re.ASCII)
"""A number of threads; one of more digits is no number that could be meant."""
_CPUS = re.compile(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", re.ASCII)
"""A CPU, or a range of them."""


@dataclass(frozen=True)
class Threads:
    """Compute threads as the engine starts them."""

    count: int
    cpus: tuple[int, ...]
    """The CPU of each thread, in order: neighbours share caches and memory nodes. Empty: the
    system places them."""
    reason: str
    notes: tuple[str, ...] = ()
    """Lines for the user who starts the engine."""


def choose_threads(asked: int | str | None, hardware: Hardware) -> Threads:
    """Return the threads for an option: a number, a CPU list such as ``0-7,16-23``, or None.

    A number binds threads to cores only if every usable core gets one, or every fast one: otherwise
    the system knows better which cores are free. Raises ConfigError naming the fix.
    """
    if isinstance(asked, bool) or not isinstance(asked, int | str | None):
        raise ConfigError(f"threads must be a number or a list of CPUs as text, not {asked!r}")
    if asked is None:
        return _default(hardware)
    if isinstance(asked, int):
        return _counted(asked, hardware)
    if _COUNT.fullmatch(asked.strip()):
        return _counted(int(asked), hardware)
    return _listed(asked, hardware)


def among(threads: Threads, processes: int, hardware: Hardware, what: str) -> Threads:
    """Return the threads of so many processes together: those of one, and one of each at least.
    ``what`` they are called: "ranks"."""
    if processes == 1:
        return threads
    if threads.count < processes:
        cores = _cores(hardware.physical_cores)
        note = f"{processes} {what}, each with a thread of its own, take turns on {cores}"
        notes = (*threads.notes, note) if processes > hardware.physical_cores else threads.notes
        return Threads(processes, (), f"one for each of {processes} {what}", notes)
    each, more = divmod(threads.count, processes)
    share = f"{each} or {each + 1} threads" if more else format_count(each)
    reason = f"{threads.reason}; {processes} {what} have {share} each"
    return Threads(threads.count, threads.cpus, reason, threads.notes)


def divided(
    count: int, cpus: tuple[int, ...], world: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the number of threads and the CPUs of each rank: neighbours, as evenly as can be."""
    edges = [count * rank // world for rank in range(world + 1)]
    return tuple((b - a, cpus[a:b]) for a, b in pairwise(edges))


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPUs of ``0-7,16-23``, ascending; raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        match = _CPUS.fullmatch(part)
        if match is None:
            raise ConfigError(
                f"threads must be a number or a list of CPUs such as 0-7,16-23, not {shown(text)}"
            )
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high >= _MOST_CPU:
            raise ConfigError(f"threads {text}: {part.strip()} is no range of CPUs")
        found += range(low, high + 1)
    if len(set(found)) < len(found):
        raise ConfigError(f"threads {text} names a CPU twice; each gets one thread")
    return tuple(sorted(found))


def format_cpus(cpus: Collection[int]) -> str:
    """The shortest list that :func:`parse_cpus` reads back: ``0-7,16-23``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def format_count(count: int) -> str:
    """``1 thread``, ``2 threads``."""
    return "1 thread" if count == 1 else f"{count} threads"


def _default(hardware: Hardware) -> Threads:
    count, quota = hardware.compute_threads, hardware.cpu_quota
    notes: tuple[str, ...] = ()
    if count < len(hardware.even_cpus) and quota is not None:
        reason = f"a control group allows {quota:g} cores' time"
        if quota < 1:
            notes = (f"{reason}: one thread, stopped for part of every period",)
    elif count < hardware.physical_cores:
        reason = f"the faster ones of {hardware.physical_cores} usable cores"
    else:
        cores = hardware.physical_cores
        reason = "1 core is usable" if cores == 1 else f"{cores} physical cores are usable"
    return Threads(count, _one_each(count, hardware), reason, notes)


def _counted(count: int, hardware: Hardware) -> Threads:
    if count < 1:
        raise ConfigError(f"threads must be at least 1, not {count}")
    usable = len(hardware.cpus)
    if count > MOST_PER_CPU * usable:
        raise ConfigError(
            f"threads {count} is more than {MOST_PER_CPU} for each of the {usable} CPUs that this "
            f"process may use; leave it out for {hardware.compute_threads}"
        )
    notes = []
    if count > hardware.physical_cores:
        notes.append(
            f"{count} threads take turns on {_cores(hardware.physical_cores)}; "
            f"{hardware.compute_threads} would be faster"
        )
    elif len(hardware.even_cpus) < count:
        notes.append(
            f"some of {_cores(count)} are slower, and the others wait for them; "
            f"{hardware.compute_threads} threads would usually be faster"
        )
    else:
        notes += _quota_notes(count, hardware)
    return Threads(count, _one_each(count, hardware), "as asked", tuple(notes))


def _listed(text: str, hardware: Hardware) -> Threads:
    asked = frozenset(parse_cpus(text))
    absent = asked.difference(hardware.cpus)
    if absent:
        raise ConfigError(
            f"threads {text}: this process may not use CPU {format_cpus(absent)}; "
            f"it may use {format_cpus(hardware.cpus)}"
        )
    cpus = tuple(cpu for cpu in hardware.placement if cpu in asked)
    notes = []
    cores = len({hardware.core_of[cpu] for cpu in cpus})
    if cores < len(cpus):
        notes.append(
            f"CPUs {format_cpus(cpus)} are hardware threads of {_cores(cores)}; one each would "
            "usually be faster"
        )
    notes += _quota_notes(len(cpus), hardware)
    return Threads(len(cpus), cpus, "as asked", tuple(notes))


def _one_each(count: int, hardware: Hardware) -> tuple[int, ...]:
    """A core for each thread, where that uses all, or all that are fast; a single thread is never
    in another's way."""
    if count > 1 and count == len(hardware.even_cpus):
        return hardware.even_cpus
    whole = count > 1 and count == hardware.physical_cores
    return hardware.placement[:count] if whole else ()


def _quota_notes(count: int, hardware: Hardware) -> list[str]:
    quota = hardware.cpu_quota
    if quota is None or count <= max(1.0, quota):
        return []
    return [
        f"a control group allows {quota:g} cores' time: {count} threads are stopped for part of "
        f"every period, {hardware.compute_threads} would be faster"
    ]


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
