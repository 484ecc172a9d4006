"""Service levels: limits of the times of an answer, as they are written, and who keeps to them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, Literal, Protocol, cast

import msgspec

from penstock.errors import ConfigError

Measure = Literal["ttft", "ttfo", "ttst", "tpot", "e2el"]
_MEASURES: Final = ("ttft", "ttfo", "ttst", "tpot", "e2el")
_CALLED: Final = {
    "time_to_first_token": "ttft",
    "time_to_first_output_token": "ttfo",
    "time_to_second_token": "ttst",
    "inter_token_latency": "tpot",
    "request_latency": "e2el",
}
_WRITTEN: Final = re.compile(r"(\w+):(\d+(?:\.\d+)?)(us|ms|s)?")
_MS: Final = Decimal("1e-3")
_UNITS: Final = {"us": Decimal("1e-6"), "ms": _MS, "s": Decimal(1), None: _MS}
"""Seconds of each: decimal, so that what was written is what is told."""


class AnswerTimes(Protocol):
    """The times of an answer, in seconds; None for those that it does not have."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""

    @property
    def ttfo_s(self) -> float | None:
        """Seconds to the first token of the answer itself, behind what the model reasons."""

    @property
    def ttst_s(self) -> float | None:
        """Seconds to the second token."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token behind the first, in the mean."""

    @property
    def e2el_s(self) -> float | None:
        """Seconds to the last token."""


class Limit(msgspec.Struct, frozen=True):
    """One limit of a service level."""

    measure: Measure
    seconds: float

    def met(self, answer: AnswerTimes) -> bool:
        """Whether an answer was within it, as one without that figure (a single token has no TPOT)
        always is."""
        value = {
            "ttft": answer.ttft_s,
            "ttfo": answer.ttfo_s,
            "ttst": answer.ttst_s,
            "tpot": answer.tpot_s,
            "e2el": answer.e2el_s,
        }[self.measure]
        return value is None or value <= self.seconds

    def __str__(self) -> str:
        """As :func:`parse_limit` reads it, which gives an equal limit."""
        digits = f"{Decimal(repr(self.seconds)) / _MS:f}"
        return f"{self.measure}:{digits.rstrip('0').rstrip('.') if '.' in digits else digits}ms"


def parse_limit(text: str) -> Limit:
    """``ttft:500ms``, ``tpot:30`` (milliseconds, as vLLM's ``--goodput``) or ``e2el:10s``; AIPerf's
    names are known, too. Raises ConfigError."""
    found = _WRITTEN.fullmatch(text)
    name = _CALLED.get(found[1], found[1]) if found else ""
    if found is None or name not in _MEASURES:
        raise ConfigError(
            f"--slo {text}: write MEASURE:TIME, such as ttft:500ms; measures are "
            f"{', '.join(_MEASURES)}"
        )
    seconds = float(Decimal(found[2]) * _UNITS[cast(str | None, found[3])])
    if not 0 < seconds < math.inf:
        raise ConfigError(f"--slo {text}: the time must be above 0")
    return Limit(cast(Measure, name), seconds)


def level_of(limits: Sequence[Limit]) -> str:
    """A service level in words, the same for the same limits in any order; empty without any."""
    return " ".join(sorted(set(map(str, limits))))
