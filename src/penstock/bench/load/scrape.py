"""The server's own metrics, before, during and after a run."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.bench.load.connection import Exchange, Pool
from penstock.bench.load.target import Target

_SAMPLE: Final = re.compile(r"([^{\s]+(?:\{.*\})?)\s+(\S+)(?:\s+-?\d+)?")
_ACCEPTED: Final = "spec_decode_num_accepted_tokens_total"
_DRAFTED: Final = "spec_decode_num_draft_tokens_total"


class ServerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a server's ``/metrics``, in Prometheus' form, by name with labels; buckets of
    histograms are left out."""

    times_s: list[float]
    """When each was asked for, from the run's start."""
    varying: dict[str, list[float | None]]
    """Series whose values changed: one for each time, None where it was missing."""
    constant: dict[str, float]
    failed: int
    """Times at which the server gave no metrics."""
    draft_acceptance: float | None = None
    """The part of the tokens drafted meanwhile that was accepted."""


class Scraper:
    """Asks for ``/metrics`` now and then. Texts are kept, and read after the run, so that reading
    them does not delay a stream."""

    def __init__(self, target: Target, pool: Pool, interval_s: float) -> None:
        self._target = target
        self._pool = pool
        self._interval = interval_s
        self._texts: list[tuple[float, list[bytes]]] = []
        self._failed = 0

    async def look(self, seconds: Callable[[], float]) -> None:
        """Ask once; ``seconds`` tells the time of the run."""
        at = seconds()
        exchange = Exchange(None)
        message = self._target.message("GET", "/metrics", accept="text/plain")
        try:
            failure = await asyncio.wait_for(self._pool.exchange(message, exchange), 10)
        except TimeoutError:
            self._failed += 1
            return
        if failure is not None or exchange.status != 200:
            self._failed += 1
            return
        lines = exchange.body.split(b"\n")
        self._texts.append(
            (
                at,
                [line for line in lines if line[:1] not in (b"", b"#") and b"_bucket{" not in line],
            )
        )

    async def keep_looking(self, seconds: Callable[[], float]) -> None:
        """Ask every so often, until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.look(seconds)

    def result(self) -> ServerMetrics | None:
        """What was found; None where the server has no metrics."""
        if not self._texts:
            return None
        found = [(at, _values(lines)) for at, lines in self._texts]
        names = {name: None for _, values in found for name in values}
        series = {name: [values.get(name) for _, values in found] for name in names}
        varying = {name: each for name, each in series.items() if len(set(each)) > 1}
        return ServerMetrics(
            times_s=[at for at, _ in found],
            varying=varying,
            constant={
                name: each[0]
                for name, each in series.items()
                if name not in varying and each[0] is not None
            },
            failed=self._failed,
            draft_acceptance=_acceptance(series),
        )


def _values(lines: Sequence[bytes]) -> dict[str, float]:
    values = {}
    for line in lines:
        found = _SAMPLE.fullmatch(line.decode(errors="replace").strip())
        if found is not None:
            with contextlib.suppress(ValueError):
                values[found[1]] = float(found[2])
    # JSON has no number for these.
    return {name: value for name, value in values.items() if abs(value) < 1e300}


def _acceptance(series: dict[str, list[float | None]]) -> float | None:
    def grown(end: str) -> float:
        known = [
            [value for value in values if value is not None]
            for name, values in series.items()
            if name.partition("{")[0].endswith(end)
        ]
        return sum(each[-1] - each[0] for each in known if each)

    drafted = grown(_DRAFTED)
    return grown(_ACCEPTED) / drafted if drafted > 0 else None
