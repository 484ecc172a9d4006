from __future__ import annotations

from pathlib import Path

import pytest
from gpu.checks import compare_story, print_story, published_text, read_junit, run, run_tests
from gpu.checks import test_files as files_of_tests
from gpu.results import Checks

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


@pytest.mark.slow
def test_a_tree_without_tests_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no test ran; pytest ended with 4"):
        run_tests(tmp_path, "tests", tmp_path / "report.xml", 120)


def test_only_tests_that_need_a_gpu_are_run() -> None:
    files = files_of_tests(Path(__file__).parents[2])
    assert files[0].startswith("tests/cuda/")
    assert "tests/backends/cuda/test_products.py" in files
    assert not any("compile" in file for file in files)


@pytest.mark.slow
def test_files_are_reported_one_by_one_and_what_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # options of this suite's own conftest
    tests = {"good": "def test_a(): pass", "bad": "def test_b(): assert 0", "none": ""}
    for name, text in tests.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    reported: list[Checks] = []
    files = [f"test_{name}.py" for name in tests]
    checks = run(tmp_path, tmp_path, None, 300, reported.append, files)
    assert (checks.passed, checks.failed) == (1, 2)
    assert len(reported) == 3
    assert reported[-1].failures == checks.failures
    assert any("test_none.py: no test ran" in failure for failure in checks.failures)
    checks = run(tmp_path, tmp_path, None, 0.0, reported.append, files[:1])
    assert checks.failures == ["test_good.py: the time was over"]


def test_a_story_is_compared_to_its_end() -> None:
    expected = published_text("# Title\n> Once upon a time\n> there was\nmore")
    assert expected == "Once upon a time\nthere was"
    assert compare_story(expected, expected + " a girl") == "as published"
    assert compare_story(expected, "Once upon a hill") == (
        "differs after 12 of 26 characters: 'hill'"
    )
    assert compare_story(expected, "Once") == "differs after 4 of 26 characters: ''"
    assert compare_story("", "Once").startswith("not run")
    assert print_story(None).startswith("not run")
