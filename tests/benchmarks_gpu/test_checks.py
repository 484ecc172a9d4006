from __future__ import annotations

from pathlib import Path

import pytest
from gpu.checks import compare_story, published_text, read_junit, run_tests, tell_story

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cuda.a" name="good"/>
<testcase classname="tests.cuda.a" name="none"><skipped message="no file"/></testcase>
<testcase classname="tests.cuda.a" name="bad"><failure message="1 != 2 in /home/me/a.py&#10;more"/>
</testcase>
<testcase classname="tests.cuda.a" name="worse"><error message=""/></testcase>
</testsuite></testsuites>"""


def test_a_report_of_pytest_is_counted() -> None:
    assert read_junit(REPORT) == (
        *(1, 2, 1),
        ["tests.cuda.a.bad: 1 != 2 in a.py", "tests.cuda.a.worse: no reason"],
    )


def test_a_tree_without_tests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no test ran; pytest ended with 4"):
        run_tests(tmp_path, tmp_path / "report.xml", 120)


def test_a_story_is_compared_to_its_end() -> None:
    expected = published_text("# Title\n> Once upon a time\n> there was\nmore")
    assert expected == "Once upon a time\nthere was"
    assert compare_story(expected, expected + " a girl") == "as published"
    assert compare_story(expected, "Once upon a hill") == (
        "differs after 12 of 26 characters: 'hill'"
    )
    assert compare_story(expected, "Once") == "differs after 4 of 26 characters: ''"
    assert compare_story("", "Once").startswith("not run")
    assert tell_story(None).startswith("not run")
