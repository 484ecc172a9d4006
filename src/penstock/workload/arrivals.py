"""When requests arrive: rates, peaks, and how bursty they are."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

_MOST_SPANS: Final = 60
_SPANS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400)


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """When requests arrive. Times are in seconds."""

    first: float
    """The first one's time; of a server since the epoch, of a trace since its beginning."""
    seconds: float
    """Time from the first to the last."""
    rate: float | None
    """Requests a second in between; null where all come at once."""
    gap_variation: float | None
    """Standard deviation of the times between arrivals over their mean: 1 for independent arrivals
    (Poisson), 0 for a clock, more for bursts. Null for fewer than three."""
    peak_second: int
    """Most requests in any second."""
    peak_minute: int
    """Most requests in any minute."""
    peak_minute_at: float
    """When that minute begins."""
    span_s: int
    """The length of the equal spans that ``counts`` are of, from ``first`` on."""
    counts: list[int]


def arrivals_of(arrived: npt.NDArray[np.float64]) -> Arrivals | None:
    """Those of times in ascending order; None where there are none."""
    if not len(arrived) or np.isnan(arrived).any():
        return None
    first, seconds = float(arrived[0]), float(arrived[-1] - arrived[0])
    gaps = np.diff(arrived)
    in_minute = _within(arrived, 60.0)
    busiest = int(in_minute.argmax())
    span = next((s for s in _SPANS_S if seconds < s * _MOST_SPANS), None)
    span = span or int(seconds // _MOST_SPANS) + 1
    counts = np.bincount(((arrived - first) // span).astype(np.int64))
    return Arrivals(
        first=first,
        seconds=seconds,
        rate=len(gaps) / seconds if seconds > 0 else None,
        gap_variation=float(gaps.std() / gaps.mean()) if len(gaps) > 1 and seconds > 0 else None,
        peak_second=int(_within(arrived, 1.0).max()),
        peak_minute=int(in_minute[busiest]),
        peak_minute_at=float(arrived[busiest]),
        span_s=span,
        counts=counts.tolist(),
    )


def _within(arrived: npt.NDArray[np.float64], seconds: float) -> npt.NDArray[np.int64]:
    """How many arrive within so many seconds of each arrival, itself included."""
    behind = np.searchsorted(arrived, arrived + seconds)
    return behind - np.searchsorted(arrived, arrived)
