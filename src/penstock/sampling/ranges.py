"""The ranges of the sampling options, and the refusal of values outside of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import RequestError, shown

MAX_INT64 = 2**63 - 1
"""Upper bound of counts without a limit of their own: the largest that can be sent to the
engine."""
MAX_LOGPROBS = 20
"""Maximum number of likely tokens that a request has reported for each token."""
MAX_SEQUENCES = 128
"""Maximum number of sequences of one request."""
MAX_STOPS = 64
"""Maximum number of stop strings, of stop tokens, and of banned strings."""
MAX_STOP_CHARS = 1024
"""Maximum number of characters in one stop string: its automaton takes some 400 bytes per
character."""
MAX_MAGNITUDE = 1e4
"""Upper bound of temperatures and repetition penalties."""


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


RANGES: Mapping[str, Range] = {
    "n": Range(1, MAX_SEQUENCES),
    "temperature": Range(0.0, MAX_MAGNITUDE),
    "top_k": Range(-1, MAX_INT64),
    "top_p": Range(0.0, 1.0, open_low=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, MAX_MAGNITUDE, open_low=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "repeat_last_n": Range(-1, MAX_INT64),
    "seed": Range(-(2**63), 2**64 - 1),
    "max_tokens": Range(1, MAX_INT64),
    "min_tokens": Range(0, MAX_INT64),
    "logprobs": Range(0, MAX_LOGPROBS),
    "prompt_logprobs": Range(0, MAX_LOGPROBS),
    "truncate_prompt_tokens": Range(-1, MAX_INT64),
    "logit_bias": Range(-100.0, 100.0),
}
"""Allowed values of each option; for ``logit_bias``, of each token's bias."""
