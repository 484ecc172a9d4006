"""Sentences about slopes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.least_squares import Line
from penstock.bench.load.result import Measured
from penstock.bench.plots.words import duration


def slope_title(cause: str, effect: str, found: Sequence[tuple[Measured, Line]]) -> str:
    """What 1,000 tokens add or take, by the lightest and the heaviest slope.

    ``cause`` begins the sentence ("1,000 more prompt tokens"), ``effect`` ends it.
    """
    several = len({measured.name for measured, _ in found}) > 1
    ordered = sorted(found, key=lambda pair: pair[1].slope)
    if not any(fit.certain for _, fit in ordered):
        return f"{cause} add nothing that could be told from noise {effect}"
    ends = [ordered[0]] if len(ordered) == 1 else [ordered[0], ordered[-1]]
    said = [_amount(fit) + _where(measured, several, len(found) > 1) for measured, fit in ends]
    return f"{cause} add {' to '.join(said)} {effect}"


def _amount(fit: Line) -> str:
    value = duration(fit.slope * 1e3)
    return value if fit.certain else f"{value} (not told from 0)"


def _where(measured: Measured, several_results: bool, several: bool) -> str:
    if not several:
        return ""
    name = f"{measured.name}, " if several_results else ""
    return f" ({name}{measured.load})"
