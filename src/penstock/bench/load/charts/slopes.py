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
    certain = sorted((pair for pair in found if pair[1].certain), key=lambda pair: pair[1].slope)
    if not certain:
        return f"{cause} add nothing that could be told from noise {effect}"
    ends = certain if len(certain) == 1 else [certain[0], certain[-1]]
    said = [
        duration(fit.slope * 1e3) + _where(measured, several, len(found) > 1)
        for measured, fit in ends
    ]
    noise = len(found) - len(certain)
    rest = f"; {noise} of {len(found)} slopes cannot be told from 0" if noise else ""
    return f"{cause} add {' to '.join(said)} {effect}{rest}"


def _where(measured: Measured, several_results: bool, several: bool) -> str:
    if not several:
        return ""
    name = f"{measured.name}, " if several_results else ""
    return f" ({name}{measured.load})"
