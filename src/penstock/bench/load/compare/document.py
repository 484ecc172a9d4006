"""The document of a comparison, as ``penstock bench compare --json`` writes it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.bench.load.confidence import Interval
from penstock.bench.load.setups import Difference

VERSION: Final = 1
"""Raised when a field changes its meaning or goes; fields may be added without."""

Verdict = Literal["differs beyond noise", "within noise", "too little data", "not comparable"]
Method = Literal["repeats", "pairs", "requests"]
"""What noise is judged by: runs that were repeated; the same requests in one run of each; or the
requests of one run of each, which were not the same."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in A and in B."""

    figure: str
    """``ttft.p99`` and the like, in seconds, or a rate or a share by its name."""
    better: Literal["less", "more"]
    a: float | None
    b: float | None
    ratio: float | None = None
    """B over A; None of shares, and where either is 0 or missing."""
    difference: float | None = None
    """B less A, of shares."""
    interval: Interval | None = None
    """The interval of the ratio or the difference, 95 %, for this figure alone."""
    method: Method | None = None
    p: float | None = None
    """How likely so much by chance is, if nothing differed."""
    p_adjusted: float | None = None
    """The same adjusted by Holm's method, for all figures that were compared."""
    verdict: Verdict = "too little data"
    direction: Literal["better", "worse"] | None = None
    """What B is, where it differs beyond noise, and by the threshold at least."""
    why: str = ""
    """Why there is too little data, or why it does not compare."""


class ComparedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One load that both have."""

    load: str
    rate: float | None
    concurrency: int | None
    runs: tuple[int, int]
    answers: tuple[int, int]
    changes: list[Change]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    version: int
    benchmark: str
    command: str
    a: str
    b: str
    differences: list[Difference]
    """What differs in the set-ups."""
    points: list[ComparedPoint]
    only_a: list[str]
    """Loads that B lacks."""
    only_b: list[str]
    level: float
    """How likely it is at most that any verdict of a difference is wrong, if nothing differs."""
    threshold: float
    """The least change that counts: of shares a difference, 0.03 for 3 points, and of all other
    figures a part of A's value."""
    compared: int
    """Figures with a verdict on what differs."""
    better: int
    worse: int
