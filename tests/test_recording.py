"""The animated picture of a terminal shows what was on the screen, and when."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent


def test_lines_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "recording"))
    svg = importlib.import_module("screen_svg")
    first, second = (svg.Run(0, "$ a < b"),), (svg.Run(2, "& c", "green", bold=True),)
    frames = [svg.Frame(0.0, (first, ())), svg.Frame(6.0, (first, second))]
    text = svg.animated_svg(frames, 20, 2)
    root = ElementTree.fromstring(text)
    shown = ["".join(group.itertext()) for group in root.iter("{http://www.w3.org/2000/svg}g")]
    assert shown == ["$ a < b", "& c"]
    assert "@keyframes k0{0%{visibility:hidden}0.00%{visibility:visible}}" in text
    assert "@keyframes k1{0%{visibility:hidden}60.00%{visibility:visible}}" in text
    assert "g{animation:10.00s step-end infinite" in text


def test_the_recording_is_small_and_whole() -> None:
    text = (ROOT / "docs" / "images" / "chat.svg").read_text()
    assert len(text) < 200_000
    root = ElementTree.fromstring(text)
    names = {group.get("id") for group in root.iter("{http://www.w3.org/2000/svg}g")}
    assert names == {f"l{number}" for number in re.findall(r"@keyframes k(\d+)", text)}
    assert "The capital of France is Paris." in text
