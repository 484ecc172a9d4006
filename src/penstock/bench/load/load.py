"""How much a run asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """One load: a rate of arrival, a number of conversations at once, or both as a bound."""

    rate: float | None
    concurrency: int | None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f"{self.rate:g}/s"
        users = "" if self.concurrency is None else f"{self.concurrency} at once"
        return ", ".join(part for part in (rate, users) if part) or "as recorded"
