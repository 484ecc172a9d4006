"""The energy that this machine's processors took, where the kernel tells it (RAPL)."""

from __future__ import annotations

from pathlib import Path

_ZONES = Path("/sys/class/powercap")


class EnergyMeter:
    """Adds up joules of the processors' packages from its making on."""

    def __init__(self, root: Path = _ZONES) -> None:
        # "intel-rapl:0" is a package, also of AMD; "intel-rapl:0:0" is a part of it.
        self._zones = [
            zone for zone in sorted(root.glob("intel-rapl:*")) if zone.name.count(":") == 1
        ]
        self._most = self._read("max_energy_range_uj")
        self._before = None if self._most is None else self._read()

    def joules(self) -> float | None:
        """Since it was made; None where nothing can be read, which may need root."""
        now = self._read()
        if now is None or self._before is None:
            return None
        total = 0
        for before, after, most in zip(self._before, now, self._most or (), strict=True):
            # A counter that is less than before has begun anew.
            total += after - before if after >= before else after + most - before
        return total / 1e6

    def _read(self, name: str = "energy_uj") -> list[int] | None:
        try:
            return [int((zone / name).read_text()) for zone in self._zones] or None
        except (OSError, ValueError):
            return None
