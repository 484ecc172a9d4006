"""A figure: what is drawn, in Vega-Lite's terms, with the words and the table beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = Mapping[str, Any]
"""A view of Vega-Lite's, as its JSON has it. It names no color: series take theirs from the theme
in the order of their scale's domain, other marks by their style (``plots/theme.py``)."""


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers, as they are shown."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Panel:
    """One view of a figure. Panels of a figure have the same series and the same axes."""

    title: str
    """What sets it apart from the figure's others; empty for a single one."""
    spec: Spec
    height: int = 260
    """Pixels of the plot itself; its width is that of the page's column."""


@dataclass(frozen=True)
class Figure:
    """A plot, or the reason why there is none."""

    name: str
    """Its file's name, and its anchor in a page."""
    subject: str
    """What it is about, in a few words, for a list of contents."""
    title: str
    """A sentence that says what is to be seen."""
    caption: str
    """What was counted, how often, and what was left out."""
    panels: Sequence[Panel] = ()
    series: Sequence[str] = ()
    """What has a color, in the order of colors; the page's legend. Fewer than two need none."""
    table: Table | None = None
    lines: bool = False
    """Whether series are lines without marks, so that the legend tells them by their dashes."""
    omitted: str | None = None
    """Why there are no panels; None where there are."""

    @classmethod
    def without(cls, name: str, subject: str, reason: str) -> Figure:
        """A figure that cannot be drawn of these results; ``reason`` says why, as a sentence."""
        return cls(name, subject, f"{subject}: not drawn", "", omitted=reason)
