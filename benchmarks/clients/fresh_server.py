"""A fresh ``penstock serve``, and what it says of itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADMIN_KEY = "benchmarks"
MODEL = "penstock-demo"
_LINE = re.compile(r"^penstock:(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Served:
    url: str

    def get(self, path: str, method: str = "GET") -> str:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def sound(self) -> bool:
        """Whether it is ready, and its engine's books agree."""
        return '"ready"' in self.get("/ready") and '"ok":true' in self.get("/admin/check", "POST")

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, without our prefix: sums over labels, and no buckets."""
        totals: dict[str, float] = {}
        for name, _, value in _LINE.findall(self.get("/metrics")):
            if not name.endswith("_bucket"):
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals


@contextmanager
def serving(log: Path, *options: str, cpus: str = "") -> Iterator[Served]:
    """The demo model on a free port of this machine, until the block ends; ``options`` may name
    another. ``cpus`` lists those that its processes may use, all if it is empty."""
    bound = ["taskset", "-c", cpus] if cpus else []
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*bound, sys.executable, "-m", "penstock", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "PENSTOCK_ADMIN_KEY": ADMIN_KEY},
        )
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            found = re.search(r"at (http://\S+)/v1", first)
            if found is None:
                raise RuntimeError(f"penstock serve did not start: {first or log}")
            yield Served(found[1])
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
