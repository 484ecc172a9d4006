"""Pages that load nothing, and in which no text is markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from penstock.bench.plots.figure import Figure, Panel, Table
from penstock.bench.plots.page import Block, Fact, Page
from penstock.bench.plots.render import check_plot_file, drawn, file_spec, require_drawing
from penstock.errors import ConfigError

HOSTILE = "</script><script>window.harmed=1</script><img src=x onerror=alert(1)>\" ' & ]]> \u2028"
SPEC = {
    "data": {"values": [{"x": 1, "y": 2, "series": HOSTILE}]},
    "mark": "point",
    "encoding": {
        "x": {"field": "x", "type": "quantitative"},
        "y": {"field": "y", "type": "quantitative"},
        "color": {"field": "series", "type": "nominal", "scale": {"domain": [HOSTILE, "b"]}},
    },
}


def page(text: str = HOSTILE) -> str:
    figure = Figure(
        "one", text, text, text, [Panel(text, SPEC)], [text, "b"], Table([text], [[text]])
    )
    without = Figure.without("none", text, f"It needs --rate 1,2. {text}")
    block = Block("table", text, text, Table(["a", "b"], [[text, "1.5 ±0.2"]]))
    facts = [Fact(text, text), Fact("Command", text, code=True)]
    return Page(text, facts, [text], [block], [figure, without], [block]).html().decode()


class Elements(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            into = self.scripts if self.tags[-1][0] == "script" else self.styles
            into.append(data)
            self.tags.append(("", {}))


def test_no_text_is_markup() -> None:
    found = Elements(page())
    assert [attributes.get("type") for tag, attributes in found.tags if tag == "script"] == [
        "application/json",
        "module",
    ]
    assert not [tag for tag, _ in found.tags if tag in ("img", "iframe", "object", "embed", "form")]
    assert not [
        name for _, attributes in found.tags for name in attributes if name.startswith("on")
    ]
    views = json.loads(found.scripts[0])["views"]
    assert views[0]["spec"]["data"]["values"][0]["series"] == HOSTILE.replace("\u2028", "\ufffd")
    assert "<" not in found.scripts[0]


def test_nothing_is_loaded() -> None:
    found = Elements(page("plain"))
    for _, attributes in found.tags:
        for name in ("src", "srcset", "data", "action", "poster"):
            assert name not in attributes
        if "href" in attributes:
            assert str(attributes["href"])[:5] in ("data:", "#tabl", "#one", "#none", "#defi")
    style = "".join(found.styles)
    assert "url(" not in style
    assert "@import" not in style
    policy = next(
        str(attributes["content"])
        for tag, attributes in found.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for text in (found.scripts[1], style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_a_page_is_the_same_every_time() -> None:
    assert page("plain") == page("plain")


def test_numbers_are_aligned_and_options_stay_whole() -> None:
    text = page("plain")
    assert '<td class="number">1.5 ±0.2</td>' in text
    assert "<code>--rate 1,2</code>" in text
    assert not re.search(r"<td class=\"number\">plain", text)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_files(kind: str) -> None:
    figure = Figure("one", "One", "One mark is drawn", "n = 1", [Panel("", SPEC)] * 3, ["a", "b"])
    picture = drawn(figure, kind, "a model; a machine")  # type: ignore[arg-type]
    begins = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}[kind]
    assert picture.startswith(begins)
    if kind == "svg":
        assert b"One mark is drawn" in picture
        assert b"a model; a machine" in picture
        assert b"<script" not in picture
        assert b"<img" not in picture
        assert picture == drawn(figure, "svg", "a model; a machine")


def test_a_file_has_all_panels() -> None:
    figure = Figure("one", "One", "Title " * 40, "caption", [Panel("p", SPEC)] * 3)
    spec = file_spec(figure, "about", 2)
    assert [panel["title"]["text"] for panel in spec["concat"]] == ["p"] * 3
    assert len(spec["title"]["text"]) > 1  # wrapped
    assert spec["title"]["subtitle"] == ["caption", "about"]


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.gif", "svg", "a"):
        with pytest.raises(ConfigError, match=r"svg, \.png or \.pdf"):
            check_plot_file(tmp_path / name)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock\[plot\]'"):
        require_drawing()
