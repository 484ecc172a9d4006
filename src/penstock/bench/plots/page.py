"""One HTML file with figures and tables, which loads nothing: data, style and script are in it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Final

import msgspec

from penstock.bench.plots.figure import Figure, Table
from penstock.bench.plots.render import page_config, page_spec, script
from penstock.bench.plots.theme import DARK, DASHES, LIGHT, PAGE
from penstock.bench.plots.words import printable

_UNIT: Final = re.compile(r"(?<=\d) (?=(%|ms|s|µs)\b|%)")
_OPTION: Final = re.compile(r"--[a-z][a-z-]*( [a-z0-9][^ ;)]*[a-z0-9])?")
_NUMBER: Final = frozenset("0123456789.,±+-%<>")
_OUTLINES: Final = (
    "M1 6a5 5 0 1 0 10 0a5 5 0 1 0 -10 0",
    "M1 1H11V11H1Z",
    "M6 1L11 11H1Z",
    "M6 0L12 6L6 12L0 6Z",
    "M4 0H8V4H12V8H8V12H4V8H0V4H4Z",
    "M1 1H11L6 11Z",
)
"""The shapes of :data:`~penstock.bench.plots.theme.SHAPES`, in a square of 12 pixels."""
_LONG: Final = 44
_STYLE_FILE: Final = "page.css"
_SCRIPT_FILE: Final = "page.js"


@dataclass(frozen=True)
class Fact:
    """A line of a page's head."""

    label: str
    text: str
    code: bool = False
    """Whether it is a command, which is shown as it was typed."""


@dataclass(frozen=True)
class Block:
    """A table with its heading and what is to be known of it."""

    name: str
    title: str
    caption: str
    table: Table


@dataclass(frozen=True)
class Page:
    """What a page says, from its head to its foot. All of it is plain text, and is escaped."""

    title: str
    facts: Sequence[Fact]
    warnings: Sequence[str]
    """What a reader has to know before any figure."""
    blocks: Sequence[Block]
    figures: Sequence[Figure]
    foot: Sequence[Block]

    def html(self) -> bytes:
        """The file. The same page makes the same bytes. Raises ConfigError where the library that
        draws is not installed."""
        style, code = self._style(), script(_static(_SCRIPT_FILE))
        policy = (
            f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(style)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        )
        return "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_text(policy)}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                f"<title>{_text(self.title)}</title>",
                '<link rel="icon" href="data:,">',
                f"<style>{style}</style>",
                "</head>",
                "<body>",
                "<main>",
                *self._head(),
                *(line for block in self.blocks for line in _block(block)),
                *(line for figure in self.figures for line in _figure(figure)),
                '<footer id="definitions">',
                *(line for block in self.foot for line in _block(block)),
                "</footer>",
                "</main>",
                f'<script type="application/json" id="plots">{self._data()}</script>',
                f'<script type="module">{code}</script>',
                "</body>",
                "</html>",
                "",
            ]
        ).encode()

    def _head(self) -> Iterator[str]:
        yield f"<header><h1>{_text(self.title)}</h1>"
        for warning in self.warnings:
            yield f'<p class="warning">{_prose(warning)}</p>'
        yield '<dl class="facts">'
        for fact in self.facts:
            text = _text(fact.text)
            shown = f"<code>{text}</code>" if fact.code else text
            yield f"<div><dt>{_text(fact.label)}</dt><dd>{shown}</dd></div>"
        yield "</dl>"
        yield '<nav aria-label="Contents"><ul>'
        for name, title in self._contents():
            yield f'<li><a href="#{_text(name)}">{_text(title)}</a></li>'
        yield "</ul></nav></header>"
        yield '<noscript><p class="warning">Plots need JavaScript; the tables below each of them '
        yield "have the same numbers.</p></noscript>"

    def _contents(self) -> Iterator[tuple[str, str]]:
        yield from ((block.name, block.title) for block in self.blocks)
        yield from ((figure.name, figure.subject) for figure in self.figures)
        yield "definitions", "What the words mean"

    def _style(self) -> str:
        dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{DARK.css()}}}}}"
        return f":root{{{LIGHT.css()}}}{dark}\n{_static(_STYLE_FILE)}"

    def _data(self) -> str:
        """Views by the place that they are drawn into. No text of it can end the script element."""
        views = [
            {"place": _place(figure, i), "spec": page_spec(panel)}
            for figure in self.figures
            for i, panel in enumerate(figure.panels)
        ]
        text = msgspec.json.encode({"config": page_config(PAGE), "views": views}).decode()
        return text.replace("<", "\\u003c")


def _static(name: str) -> str:
    folder = resources.files("penstock.bench.plots") / "static"
    return (folder / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _place(figure: Figure, panel: int) -> str:
    return f"{figure.name}-{panel}"


def _text(text: str) -> str:
    return escape(printable(text))


def _prose(text: str) -> str:
    """Escaped, with units that stay at their numbers, and options that stay whole."""
    return _OPTION.sub(r"<code>\g<0></code>", _UNIT.sub("\u00a0", _text(text)))


def _block(block: Block) -> Iterator[str]:
    yield f'<section id="{_text(block.name)}"><h2>{_text(block.title)}</h2>'
    if block.caption:
        yield f"<p>{_prose(block.caption)}</p>"
    yield from _table(block.table)
    yield "</section>"


def _figure(figure: Figure) -> Iterator[str]:
    yield f'<section id="{_text(figure.name)}"><h2>{_text(figure.title)}</h2>'
    if figure.omitted is not None:
        yield f'<p class="omitted">{_prose(figure.omitted)}</p></section>'
        return
    if len(figure.series) > 1:
        yield '<ul class="legend" aria-label="Colors">'
        for i, name in enumerate(figure.series):
            yield f"<li>{_key(i, figure.lines)}{_text(name)}</li>"
        yield "</ul>"
    yield f'<div class="panels{" wide" if len(figure.panels) == 1 else ""}">'
    for i, panel in enumerate(figure.panels):
        label = _text(f"{figure.title} {panel.title}".strip())
        heading = f"<figcaption>{_text(panel.title)}</figcaption>" if panel.title else ""
        yield (
            f'<figure>{heading}<div class="plot" id="{_text(_place(figure, i))}" role="img" '
            f'aria-label="{label}"></div></figure>'
        )
    yield f'</div><p class="caption">{_prose(figure.caption)}</p>'
    if figure.table is not None:
        yield "<details><summary>The numbers</summary>"
        yield from _table(figure.table)
        yield "</details>"
    yield "</section>"


def _key(place: int, line: bool) -> str:
    """The picture of a series in the legend."""
    color = f"var(--series-{place % len(PAGE.series) + 1})"
    if line:
        dash = " ".join(str(part) for part in DASHES[place % len(DASHES)])
        path = f'<path d="M0 6H28" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        return f'<svg class="key" width="28" height="12" aria-hidden="true">{path}</svg>'
    path = f'<path d="{_OUTLINES[place % len(_OUTLINES)]}" fill="{color}"/>'
    return f'<svg class="key" width="12" height="12" aria-hidden="true">{path}</svg>'


def _table(table: Table) -> Iterator[str]:
    numeric = [
        bool(table.rows) and all(_is_number(row[i]) for row in table.rows)
        for i in range(len(table.header))
    ]
    kinds = [' class="number"' if each else "" for each in numeric]
    yield '<div class="scroller" tabindex="0"><table><thead><tr>'
    for name, kind in zip(table.header, kinds, strict=True):
        yield f'<th scope="col"{kind}>{_text(name)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = (
            f"<td{kind or _of_words(cell)}>{_text(cell)}</td>"
            for cell, kind in zip(row, kinds, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _of_words(cell: str) -> str:
    """Long texts wrap; others stay on a line."""
    return ' class="words"' if len(cell) > _LONG else ""


def _is_number(cell: str) -> bool:
    """Whether a cell has a number with its unit, or nothing."""
    words = cell.split()
    return not words or cell == "-" or set(words[0]) <= _NUMBER
