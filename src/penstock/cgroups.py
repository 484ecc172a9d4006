"""What control groups, versions 1 and 2, leave to this process: CPU time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.sysfs import parse_number, read_entry, read_number, read_text

_UNLIMITED: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned int64; nothing real is above this."""


@dataclass(frozen=True)
class Cgroups:
    """The control-group folders that bind this process, innermost first, per controller."""

    unified: tuple[Path, ...]
    cpu_v1: tuple[Path, ...]
    memory_v1: tuple[Path, ...]

    @classmethod
    def read(cls, root: Path) -> Cgroups:
        """The groups of this process, of a machine under ``root``."""
        mount = root / "sys/fs/cgroup"
        chains: dict[str, tuple[Path, ...]] = {"unified": (), "cpu": (), "memory": ()}
        for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
            parts = line.split(":", 2)
            if len(parts) != 3:
                continue
            _, controllers, path = parts
            if not controllers:
                # Beside version 1, version 2 is mounted in a folder of its own.
                beside = mount / "unified"
                chains["unified"] = _chain(beside if beside.is_dir() else mount, path)
            for name in ("cpu", "memory"):
                if name in controllers.split(","):
                    # Distributions mount "cpu" alone, joined, or as a link to the joined folder.
                    mounts = (mount / m for m in (name, controllers))
                    base = next((m for m in mounts if m.is_dir()), None)
                    chains[name] = _chain(base, path) if base is not None else ()
        return cls(chains["unified"], chains["cpu"], chains["memory"])

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time, the tightest of all enclosing groups; None where none has a
        quota."""
        return min(self._quotas(), default=None)

    def _quotas(self) -> Iterator[float]:
        for group in self.unified:
            fields = (read_text(group / "cpu.max") or "").split()
            if len(fields) == 2:
                yield from _share(parse_number(fields[0]), parse_number(fields[1]))
        for group in self.cpu_v1:
            quota = read_number(group / "cpu.cfs_quota_us")
            yield from _share(quota, read_number(group / "cpu.cfs_period_us"))

    def memory_limits(self) -> list[tuple[int, int]]:
        """(limit, still free) in bytes of each enclosing group that has a limit.

        Page cache that nobody used lately is counted as free: the kernel drops it first. Above
        ``memory.high`` a group is stopped until memory is taken from it, so that counts as its
        limit.
        """
        found = []
        for group in self.unified:
            limits = [read_number(group / name) for name in ("memory.max", "memory.high")]
            limit = min((n for n in limits if n is not None and n >= 0), default=_UNLIMITED)
            if limit < _UNLIMITED:
                used = read_number(group / "memory.current") or 0
                idle = read_entry(group / "memory.stat", "inactive_file") or 0
                found.append((limit, max(0, limit - used + idle)))
        for group in self.memory_v1:
            # Of groups around it that a container does not see, too.
            around = read_entry(group / "memory.stat", "hierarchical_memory_limit")
            own = read_number(group / "memory.limit_in_bytes")
            limits = [own, around]
            limit = min((n for n in limits if n is not None and n >= 0), default=_UNLIMITED)
            if limit < _UNLIMITED:
                used = read_number(group / "memory.usage_in_bytes") or 0
                idle = read_entry(group / "memory.stat", "total_inactive_file") or 0
                found.append((limit, max(0, limit - used + idle)))
        return found


def _share(quota: int | None, period: int | None) -> Iterator[float]:
    if quota is not None and quota > 0 and period is not None and period > 0:
        yield quota / period


def _chain(mount: Path, path: str) -> tuple[Path, ...]:
    """The group at ``path`` and its ancestors, as far as the mount shows them.

    In a container the path may name the host's hierarchy, or lead out of the mount by ``..``; its
    mount then starts at our group.
    """
    inner = PurePosixPath(path.lstrip("/"))
    if ".." in inner.parts:
        inner = PurePosixPath()
    steps = [mount / inner, *(mount / parent for parent in inner.parents)]
    return tuple(dict.fromkeys(step for step in steps if step.is_dir()))
