"""The comparison lives outside of the package: tests put its folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cpu"


def pytest_configure() -> None:
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))


@pytest.fixture
def fake_engine(tmp_path: Path) -> Path:
    """A worker script: an engine that answers at once, and does as its model's name says."""
    script = tmp_path / "fake_engine.py"
    script.write_text(
        """
import os, subprocess, sys, time
from comparison.protocol import Load, Request
from workers.loop import TokenTimes, serve

class Fake:
    def load(self, options):
        print("a library that prints", flush=True)
        self.model = os.path.basename(options.model)
        if self.model == "broken":
            raise RuntimeError("no such model")
        isa = self.model.removeprefix("isa ") if self.model.startswith("isa ") else "portable"
        return {"isa": isa, "threads": str(options.threads)}

    def run(self, requests, clients, times):
        if self.model == "dies":
            sys.stderr.write("out of memory\\n")
            sys.stderr.flush()
            os._exit(3)
        if self.model == "crashes":
            os.kill(os.getpid(), 8)
        if self.model == "hangs":
            time.sleep(600)
        if self.model == "spins":
            deadline = time.process_time() + 0.2
            while time.process_time() < deadline:
                pass
        if self.model == "child":
            subprocess.Popen(["sleep", "600"])
        if self.model == "fails on 4" and len(requests) == 4:
            raise RuntimeError("four are too many")
        times.start()
        for i, request in enumerate(requests):
            short = self.model == "short"
            for _ in range(request.output - short):
                times.add(i)

    def score(self, windows, first):
        if self.model == "tells nothing":
            raise RuntimeError("no log-probabilities")
        return sum(0.5 * len(window[first:]) for window in windows)

    def close(self):
        pass

serve(Fake())
""",
        encoding="utf-8",
    )
    return script
