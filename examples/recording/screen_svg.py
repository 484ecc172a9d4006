"""Writes what a terminal showed, and when, as an SVG that CSS animates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 14
"""Pixels, of a monospaced font of 14 pixels."""
HOLD_S = 4.0
"""Seconds for which the last screen stays, before all begins again."""
_COLORS = {
    "default": "#d6deeb",
    "black": "#575656",
    "red": "#ef5350",
    "green": "#22da6e",
    "brown": "#addb67",
    "blue": "#82aaff",
    "magenta": "#c792ea",
    "cyan": "#21c7a8",
    "white": "#ffffff",
}


@dataclass(frozen=True)
class Run:
    """Characters of one line that look alike, from a column on."""

    column: int
    text: str
    color: str = "default"
    bold: bool = False
    italic: bool = False


Line = tuple[Run, ...]


@dataclass(frozen=True)
class Frame:
    """The screen from ``seconds`` after the beginning on."""

    seconds: float
    lines: tuple[Line, ...]


def animated_svg(frames: Sequence[Frame], columns: int, rows: int) -> str:
    """The frames in a loop. Each line is written once for each time that it was shown."""
    total = frames[-1].seconds + HOLD_S
    width = columns * CELL_WIDTH + 2 * MARGIN
    height = rows * LINE_HEIGHT + 2 * MARGIN
    styles, elements = [], []
    for row in range(rows):
        for start, end, line in _times(frames, row, total):
            if not line:
                continue
            number = len(elements)
            first, last = 100 * start / total, 100 * end / total
            shown = f"{first:.2f}%{{visibility:visible}}"
            hidden = f"{last:.2f}%,100%{{visibility:hidden}}" if end < total else ""
            styles.append(f"@keyframes k{number}{{0%{{visibility:hidden}}{shown}{hidden}}}")
            styles.append(f"#l{number}{{animation-name:k{number}}}")
            y = MARGIN + (row + 0.75) * LINE_HEIGHT
            elements.append(f'<g id="l{number}">{"".join(_text(run, y) for run in line)}</g>')
    style = (
        f"g{{animation:{total:.2f}s step-end infinite;visibility:hidden}}"
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}"
        ".b{font-weight:bold}.i{font-style:italic}" + "".join(styles)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">\n<style>{style}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#011627"/>\n'
        + "\n".join(elements)
        + "\n</svg>\n"
    )


def _times(frames: Sequence[Frame], row: int, total: float) -> list[tuple[float, float, Line]]:
    """What a row showed, from when and until when."""
    found: list[tuple[float, float, Line]] = []
    start, line = frames[0].seconds, frames[0].lines[row]
    for frame in frames[1:]:
        if frame.lines[row] != line:
            found.append((start, frame.seconds, line))
            start, line = frame.seconds, frame.lines[row]
    return [*found, (start, total, line)]


def _text(run: Run, y: float) -> str:
    kind = " ".join(name for name, on in (("b", run.bold), ("i", run.italic)) if on)
    look = f' class="{kind}"' if kind else ""
    color = _COLORS.get(run.color, _COLORS["default"])
    x = MARGIN + run.column * CELL_WIDTH
    length = len(run.text) * CELL_WIDTH
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" textLength="{length:.1f}"{look}>'
        f"{escape(run.text)}</text>"
    )
