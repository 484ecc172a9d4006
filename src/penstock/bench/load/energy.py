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
        self._before = self._read()

    def joules(self) -> float | None:
        """Since it was made; None where nothing can be read, which may need root."""
        now = self._read()
        if now is None or self._before is None:
            return None
        total = 0
        for before, after, zone in zip(self._before, now, self._zones, strict=True):
            if after < before:  # the counter has begun anew
                after += int((zone / "max_energy_range_uj").read_text())
            total += after - before
        return total / 1e6

    def _read(self) -> list[int] | None:
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self._zones] or None
        except (OSError, ValueError):
            return None
