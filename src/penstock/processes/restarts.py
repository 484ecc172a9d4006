"""Decides when a server or engine that died is started again, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Starts again after a pause that doubles with each death in a row."""

    max_restarts: int = 5
    """Most restarts without a stable life in between; with 0, the first death is final."""
    backoff_s: float = 1.0
    """Seconds before the first restart; doubled for each further one."""
    max_backoff_s: float = 60.0
    stable_s: float = 300.0
    """Seconds of life after which earlier deaths no longer count."""

    def pause(self, deaths: int) -> float | None:
        """Return the seconds to wait after so many deaths in a row; None to give up."""
        if deaths > self.max_restarts:
            return None
        # 2.0 ** 1024 is no float.
        return min(self.backoff_s * 2.0 ** min(deaths - 1, 64), self.max_backoff_s)
