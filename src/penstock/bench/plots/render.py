"""Draws figures with Vega-Lite, by the package ``vl-convert-python``, which needs no browser."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

import msgspec

from penstock.bench.plots.figure import Figure, Panel, Spec
from penstock.bench.plots.theme import LIGHT, Theme
from penstock.bench.plots.words import printable
from penstock.errors import ConfigError
from penstock.written_file import write_bytes

PlotFormat = Literal["svg", "png", "pdf"]
FORMATS: Final[tuple[PlotFormat, ...]] = ("svg", "png", "pdf")
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing loads it
_VERSION: Final = "6.4"
"""Vega-Lite's, of the pages and of the files: another would place marks elsewhere."""
_WIDTH: Final = 430
"""Pixels of a panel in a file with several; one alone is wider."""
_SCALE: Final = 2.0
"""Pixels of a PNG for each of a picture's."""


def require_drawing() -> ModuleType:
    """The library that draws. Raises ConfigError where it is not installed."""
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigError(
            "plots need vl-convert-python; install it with: pip install 'penstock[plot]'"
        ) from error
    module: ModuleType = vl_convert
    return module


def check_plot_file(path: Path) -> None:
    """Raise ConfigError if no picture could be written there: before hours of measuring."""
    if path.suffix[1:] not in FORMATS or not path.suffix:
        raise ConfigError(f"a plot is written as .svg, .png or .pdf, not {path.name!r}")
    require_drawing()


def drawn(figure: Figure, kind: PlotFormat, about: str = "", columns: int = 2) -> bytes:
    """A picture of a figure, on white; ``about`` says below its title what was measured.

    The same figure makes the same bytes.
    """
    library, spec = require_drawing(), file_spec(figure, about, columns)
    if kind == "svg":
        text: str = library.vegalite_to_svg(spec, vl_version=_VERSION)
        return text.encode()
    if kind == "pdf":
        return bytes(library.vegalite_to_pdf(spec, vl_version=_VERSION))
    return bytes(library.vegalite_to_png(spec, vl_version=_VERSION, scale=_SCALE))


def write_plot(figure: Figure, path: Path, about: str = "", columns: int = 2) -> None:
    """Write a picture in the form that the file's name ends with."""
    kind = next(kind for kind in FORMATS if kind == path.suffix[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn(figure, kind, about, columns))


@functools.cache  # bundling takes a second
def script(snippet: str) -> str:
    """JavaScript of Vega, Vega-Lite and Vega-Embed, with ``snippet`` at their end, which may use
    ``vegaEmbed``. It loads nothing."""
    found: str = require_drawing().javascript_bundle(snippet, vl_version=_VERSION)
    return found


def page_config(theme: Theme) -> Spec:
    """The configuration of a page's views: the page itself has their titles and legends."""
    # Screen readers have the page's words and tables.
    return {**theme.config(), "legend": {"disable": True}, "aria": False}


def page_spec(panel: Panel) -> dict[str, Any]:
    """A panel that takes the width of its place in a page."""
    return {
        "$schema": _SCHEMA,
        "width": "container",
        "height": panel.height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **_printable(panel.spec),
    }


def file_spec(figure: Figure, about: str, columns: int) -> dict[str, Any]:
    """All of a figure as one view."""
    several = len(figure.panels) > 1
    columns = min(columns, len(figure.panels))
    wide = 96 if columns == 1 else 64 * columns
    lines = [*textwrap.wrap(figure.caption, wide + 20), *textwrap.wrap(about, wide + 20)]
    title = {"text": textwrap.wrap(figure.title, wide), "subtitle": lines, "fontSize": 15}
    panels = [
        {
            **({"title": {"text": panel.title, "fontSize": 13}} if panel.title else {}),
            "width": _WIDTH if several else 640,
            "height": panel.height,
            **panel.spec,
        }
        for panel in figure.panels
    ]
    config = msgspec.to_builtins(LIGHT.config())
    config["legend"] |= {"orient": "bottom", "columns": 3}
    config["aria"] = False  # half of a file would be labels that repeat its text
    return {
        "$schema": _SCHEMA,
        "title": _printable(title | {"offset": 14}),
        "concat": _printable(panels),
        "columns": columns,
        "config": config,
    }


def _printable(value: Any) -> Any:
    """A copy whose texts have no control characters: Vega's expressions cannot hold line
    separators, and a null character ends the process that draws."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(each) for each in value]
    return value
