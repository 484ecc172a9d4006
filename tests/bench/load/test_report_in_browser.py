"""The report in a browser: everything is drawn, nothing is complained of, nothing is too wide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser, browser
from support.load_reports import Drawn, Speed, answer, drawn_report, report_of, run_of

from penstock.bench.load.charts.report import figures_of, page_of
from penstock.bench.load.load import Load
from penstock.bench.load.quality import Quality
from penstock.bench.load.result import Result
from penstock.service_level import Limit

pytestmark = pytest.mark.slow

SWEEP = (Load(None, 1), Load(None, 2), Load(None, 8))
RATES = (Load(2.0, None), Load(8.0, None))
LIMITS = (Limit("ttft", 0.2),)
HOSTILE = "</script><script>harmed=1</script><img src=x onerror=harmed=2>\u2028\0\n\u202e\\ '\""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def written(folder: Path, *results: Result) -> str:
    path = folder / "report.html"
    path.write_bytes(page_of(results, figures_of(results)).html())
    return path.as_uri()


def several(folder: Path) -> str:
    tests = (
        Drawn(loads=SWEEP, patterns=True, limits=LIMITS),
        Drawn(loads=SWEEP, patterns=True, limits=LIMITS, speed=Speed(gap_s=0.02), metrics="vllm"),
    )
    return written(
        folder,
        *(Result(f"r{i}", drawn_report(t), Quality(12.5 + i)) for i, t in enumerate(tests)),
    )


def rates(folder: Path) -> str:
    return written(folder, Result("r", drawn_report(Drawn(loads=RATES, repeats=3, limits=LIMITS))))


def hostile(folder: Path) -> str:
    run = run_of([answer(i, i, [9000, 900], 5 + i, pattern=f"{HOSTILE}{i}") for i in range(5)])
    bad = run_of(
        [answer(0, 0.0, [9000]), answer(1, 1.0, [], error=HOSTILE, message=HOSTILE)], SWEEP[2]
    )
    report = report_of([run, bad], model=HOSTILE, command=HOSTILE)
    return written(folder, Result(HOSTILE, report), Result("other", report))


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("make", [several, rates, hostile])
def test_all_is_drawn(
    chrome: Browser,
    tmp_path: Path,
    width: int,
    make: type[several],  # type: ignore[valid-type]
) -> None:
    chrome.driver.execute_cdp_cmd(  # type: ignore[no-untyped-call]
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    chrome.complaints()
    chrome.open(make(tmp_path), "html.ready")  # type: ignore[operator]
    assert chrome.complaints() == []
    places, pictures, least = chrome.run(
        "const places = [...document.querySelectorAll('.plot')];"
        "const pictures = places.map((e) => e.querySelector('svg')).filter(Boolean);"
        "const sizes = pictures.map((e) => e.getBoundingClientRect());"
        "return [places.length, pictures.length, Math.min(...sizes.map((s) => s.width * s.height))]"
    )
    assert places == pictures > 5
    assert least > 200 * 60
    wide, window = chrome.run(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= window
    assert chrome.run("return window.harmed ?? null") is None
    cut = chrome.run(
        "return [...document.querySelectorAll('.plot')].filter("
        "(e) => e.querySelector('svg').getBoundingClientRect().right"
        " > e.getBoundingClientRect().right + 1).map((e) => e.id)"
    )
    assert cut == []


def test_colors_follow_the_reader_s_scheme(chrome: Browser, tmp_path: Path) -> None:
    url = rates(tmp_path)
    inks = []
    for scheme in ("light", "dark"):
        chrome.driver.execute_cdp_cmd(  # type: ignore[no-untyped-call]
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        chrome.open(url, "html.ready")
        inks.append(
            chrome.run(
                "const text = document.querySelector('.plot svg text');"
                "return [getComputedStyle(text).fill, getComputedStyle(document.body).color]"
            )
        )
    assert inks[0][0] != inks[1][0]
    assert inks[0][1] != inks[1][1]
