"""What is shown while a model is loaded."""

from __future__ import annotations

import io
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from support.terminal_text import TerminalText

from penstock import LLM
from penstock.cli import load, status_line
from penstock.cli.load_progress import LoadProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    return now


def test_a_bar_on_a_terminal(clock: list[float]) -> None:
    stream = TerminalText()
    progress = LoadProgress(stream)
    progress("weights", 0.1, 10**9)
    assert stream.getvalue() == ""  # perhaps it is done in a moment
    clock[0] = 1.0
    progress("weights", 0.5, 2_500_000_000)
    assert stream.getvalue() == "\rloading: weights [##########..........] 50 % of 2.5 GB"
    progress("weights", 0.6, 2_500_000_000)  # too soon to draw again
    assert "60 %" not in stream.getvalue()
    progress.close()
    assert stream.getvalue().endswith(" \r")


def test_a_warning_takes_the_place_of_the_bar(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = TerminalText()
    monkeypatch.setattr("sys.stderr", stream)

    def warning(load_progress: LoadProgress, **options: Any) -> Any:
        clock[0] = 1.0
        load_progress("tuning", 0.0, 0)
        logging.getLogger("penstock.artifact").warning("no artifact is kept: %s", "full\x1b")
        return SimpleNamespace(config=SimpleNamespace(notes=()))

    monkeypatch.setattr(load, "LLM", warning)
    load.loaded({}, None, quiet=False)
    shown = "loading: tuning"
    blank = " " * len(shown)
    said = "penstock: no artifact is kept: full\N{SYMBOL FOR ESCAPE}\n"
    assert stream.getvalue().startswith(f"\r{shown}\r{blank}\r{said}")
    assert logging.getLogger("penstock").handlers == []


def test_lines_elsewhere(clock: list[float]) -> None:
    stream = io.StringIO()
    progress = LoadProgress(stream)
    for second in range(25):
        clock[0] = float(second)
        progress("weights", second / 25, 270_000_000)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "penstock: loading: weights 40 % of 270 MB",
        "penstock: loading: weights 80 % of 270 MB",
    ]


def test_nothing_where_it_is_not_wanted(clock: list[float]) -> None:
    stream = TerminalText()
    progress = LoadProgress(stream, enabled=False)
    clock[0] = 100.0
    progress("weights", 0.5, 0)
    progress.close()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"speculative": "draft"}])
def test_an_engine_tells_how_loading_goes_on(options: dict[str, str]) -> None:
    told: list[tuple[str, float, int]] = []
    with LLM(threads=1, load_progress=lambda *now: told.append(now), artifact=False, **options):
        parts = [part for phase, part, _ in told if phase == "weights"]
    assert len(parts) > 5
    assert max(parts) <= 1.0
    assert parts[-1] == pytest.approx(1.0)
    assert all(num_bytes > 0 for phase, _, num_bytes in told if phase == "weights")
