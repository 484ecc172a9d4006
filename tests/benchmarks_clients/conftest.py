"""The clients' runner lives outside of the package: tests put its folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "clients"


def pytest_configure() -> None:
    if str(FOLDER) not in sys.path:
        # Not the first: benchmarks/cpu has a module named run too.
        sys.path.append(str(FOLDER))
