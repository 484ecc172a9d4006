"""Numbers as a reader wants them: three digits, and a unit that suits their size."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Unit:
    """A unit of an axis."""

    name: str
    per_base: float
    """How many of it a base unit (a second) is."""

    def of(self, value: float) -> float:
        return rounded(value * self.per_base)


SECONDS, MILLISECONDS = Unit("s", 1.0), Unit("ms", 1e3)


def time_unit(seconds: Iterable[float]) -> Unit:
    """What an axis of these times is in."""
    return SECONDS if max(seconds, default=0.0) >= 2 else MILLISECONDS


def rounded(value: float) -> float:
    """Four digits are more than a plot shows, and half the bytes."""
    return float(f"{value:.4g}")


def number(value: float | None) -> str:
    """Three digits: ``0.0123``, ``1.23``, ``1,230``; a dash for None."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(digits, 9)}f}"


def duration(seconds: float | None) -> str:
    """A time with its unit: ``85 µs``, ``412 ms``, ``1.23 s``."""
    if seconds is None:
        return "-"
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 999.5 * size and seconds:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds)} s"


def with_half(value: float, half: float) -> str:
    """A value and half of its interval's width, as far as that knows it: ``14.60 ±0.01``."""
    if not (half > 0 and math.isfinite(half)):
        return f"{number(value)} ±{number(half)}"
    size = math.floor(math.log10(half))
    digits = -size if half / 10**size >= 2 else 1 - size
    most = 4 - math.floor(math.log10(abs(value))) if value else 4
    digits = max(0, min(digits, most, 9))
    return f"{value:,.{digits}f} ±{half:,.{digits}f}"


def plain_number(value: float) -> str:
    """``4`` or ``0.25``, as it was typed."""
    return f"{value:g}"


def printable(text: str) -> str:
    """The text without characters that are not seen, such as control characters and those that turn
    the direction of writing: a replacement stands for each."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def evenly_taken(count: int, most: int) -> np.ndarray:
    """Take ``most`` indices of ``count`` at most, at even distances: the same ones every time."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
