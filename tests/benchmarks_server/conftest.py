"""``benchmarks/server`` lives outside of the package: tests put its folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "server"


def pytest_configure() -> None:
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
