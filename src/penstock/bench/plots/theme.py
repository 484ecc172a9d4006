"""Colors and type of plots. A figure names none, so the same one fits a light page, a dark one and
paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.bench.plots.figure import Spec

SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
DASHES: Final[Sequence[Sequence[int]]] = ([1, 0], [7, 3], [2, 2], [8, 3, 2, 3], [4, 4], [12, 4])
"""Marks and lines of the series in turn: no series is told by its color alone."""


@dataclass(frozen=True)
class Theme:
    """Colors, as CSS writes them."""

    ground: str
    surface: str
    ink: str
    soft: str
    line: str
    series: tuple[str, ...]
    """Told apart with any color vision, and from ``surface``."""
    font: str

    def config(self) -> Spec:
        """Vega-Lite's configuration."""
        text = {"labelColor": self.soft, "titleColor": self.ink, "labelFont": self.font}
        axis = {
            **text,
            "titleFont": self.font,
            "titleFontWeight": "normal",
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titlePadding": 8,
            "gridColor": self.line,
            "domainColor": self.soft,
            "tickColor": self.soft,
            "labelLimit": 220,
            "labelFlush": False,
            "labelSeparation": 6,
        }
        return {
            "background": self.surface,
            "font": self.font,
            "padding": 5,
            "view": {"stroke": None},
            "axis": axis,
            "legend": {**text, "titleFont": self.font, "labelFontSize": 12, "labelLimit": 300},
            "title": {
                "color": self.ink,
                "subtitleColor": self.soft,
                "font": self.font,
                "subtitleFont": self.font,
                "anchor": "start",
                "fontWeight": 600,
            },
            "range": {"category": list(self.series), "symbol": list(SHAPES)},
            "text": {"color": self.ink, "font": self.font, "fontSize": 12},
            "style": {
                "reference": {
                    "color": self.soft,
                    "stroke": self.soft,
                    "strokeDash": [4, 4],
                    "strokeWidth": 1,
                },
                "ink": {"color": self.ink, "stroke": self.ink, "fill": self.ink},
                "heat": {"fill": self.series[0]},
            },
        }

    def css(self) -> str:
        """The declarations of :data:`PAGE`'s variables."""
        fixed = {
            "ground": self.ground,
            "surface": self.surface,
            "ink": self.ink,
            "soft": self.soft,
            "line": self.line,
        }
        named = fixed | {f"series-{i + 1}": color for i, color in enumerate(self.series)}
        return "".join(f"--{name}:{color};" for name, color in named.items())


_SANS: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif'

# The series' hues are those of Okabe and Ito (Color Universal Design, 2008), shifted in lightness
# until each has a contrast of 3 to its surface.
LIGHT: Final = Theme(
    ground="#fbfbfa",
    surface="#ffffff",
    ink="#1a1c1e",
    soft="#4d5258",
    line="#e2e2dd",
    series=("#0072b2", "#d55e00", "#008a64", "#b0508f", "#a87400", "#3f8fc4"),
    font="sans-serif",
)
DARK: Final = Theme(
    ground="#121416",
    surface="#181b1d",
    ink="#e6e8ea",
    soft="#b3b8be",
    line="#2f353a",
    series=("#56a9e0", "#f0853f", "#34c79b", "#e29cc8", "#e3b341", "#9fd4f5"),
    font="sans-serif",
)
PAGE: Final = Theme(
    ground="var(--ground)",
    surface="transparent",
    ink="var(--ink)",
    soft="var(--soft)",
    line="var(--line)",
    series=tuple(f"var(--series-{i + 1})" for i in range(len(LIGHT.series))),
    font=_SANS,
)
"""Colors that a page's style sheet gives: they change with the reader's scheme, and for paper."""
