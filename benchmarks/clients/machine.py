"""The machine of a result, in a few words."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def described_machine() -> dict[str, Any]:
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else ""
    return {
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "load average": [round(value, 1) for value in os.getloadavg()],
    }
