"""What a server's metrics say of its load, and of the service level in a while."""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from penstock.deploy.autoscaling import Figures

_SAMPLE: Final = re.compile(
    r"^penstock:(num_requests_running|num_requests_waiting|request_slo_judged_total|"
    r"request_slo_met_total)\{.*\} (\S+)$",
    re.MULTILINE,
)


class FigureReader:
    """Figures of one server, of texts of its metrics."""

    def __init__(self, window_s: float) -> None:
        """``window_s``: seconds of requests that figures are of."""
        self._window_s = window_s
        self._counted: deque[tuple[float, float, float]] = deque()

    def read(self, metrics: str, now: float) -> Figures:
        """The figures at ``now``, in seconds that never go back. Counters that have gone back, as
        those of a server that was started anew have, begin the window again."""
        values = {name: float(value) for name, value in _SAMPLE.findall(metrics)}
        judged = values.get("request_slo_judged_total", 0.0)
        met = values.get("request_slo_met_total", 0.0)
        counted = self._counted
        if counted and judged < counted[-1][1]:
            counted.clear()
        counted.append((now, judged, met))
        while len(counted) > 1 and counted[1][0] <= now - self._window_s:
            counted.popleft()
        _, judged_before, met_before = counted[0]
        return Figures(
            running=values.get("num_requests_running", 0.0),
            waiting=values.get("num_requests_waiting", 0.0),
            judged=judged - judged_before,
            met=met - met_before,
        )
