"""The values that a numeric option may have, and the refusal of others."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.errors import RequestError, shown

MAX_INT64 = 2**63 - 1
"""Upper bound of counts without a limit of their own: the largest that can be sent to the
engine."""


class Range(NamedTuple):
    """Allowed values of an option: integers if ``low`` is an integer, else any numbers."""

    low: float
    high: float | None = None
    """Upper bound, inclusive; None means no limit."""
    open_low: bool = False
    """Whether ``low`` itself is excluded."""

    def check(self, name: str, value: float) -> None:
        """Raise RequestError naming the option ``name`` unless ``value`` is allowed."""
        if isinstance(self.low, int):
            self._check_integer(name, value)
        else:
            self._check_number(name, value)

    def _check_number(self, name: str, value: float) -> None:
        low, high, open_low = self
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _finite(value):
            raise RequestError(f"{name} must be a finite number, not {shown(value)}", name)
        if value < low or (high is not None and value > high) or (open_low and value == low):
            assert high is not None  # every range of numbers has two ends
            bracket = "(" if open_low else "["
            raise RequestError(
                f"{name} must be in {bracket}{low:g}, {high:g}], not {shown(value)}", name
            )

    def _check_integer(self, name: str, value: float) -> None:
        low, high, _ = self
        if isinstance(value, bool) or not isinstance(value, int):
            raise RequestError(f"{name} must be an integer, not {shown(value)}", name)
        if value < low or (high is not None and value > high):
            if high == MAX_INT64:
                limit = f"be at least {low}" if value < low else "fit in 64 bits"
            else:
                limit = f"be at least {low}" if high is None else f"be from {low} to {high}"
            raise RequestError(f"{name} must {limit}, not {shown(value)}", name)


def _finite(value: float) -> bool:
    """Whether a number is finite. Also takes integers that no float can hold, which math.isfinite()
    does not."""
    return isinstance(value, int) or math.isfinite(value)
