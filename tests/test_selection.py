"""Which tests run: none is skipped for what a build should have brought, and few cases of many."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.needs import Need, allowed, shared

from penstock.backends.cpu import native
from penstock.hardware import detect

SKIPPED = {
    "a mark": "@pytest.mark.skip(reason={reason!r})\ndef test_it(): pass",
    "a condition": "@pytest.mark.skipif(True, reason={reason!r})\ndef test_it(): pass",
    "the test": "def test_it(): pytest.skip({reason!r})",
    "a fixture": ("@pytest.fixture\ndef it(): pytest.skip({reason!r})\n\ndef test_it(it): pass"),
    "the module": "pytest.skip({reason!r}, allow_module_level=True)\ndef test_it(): pass",
}


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run would import what is installed again, which takes a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def outcomes(pytester: pytest.Pytester, source: str, *options: str) -> dict[str, int]:
    pytester.makepyfile(f"import pytest\n\n{source}\n\ndef test_other(): pass")
    plugins = ("-p", "support.no_skips", "-p", "no:cacheprovider")
    return pytester.runpytest_inprocess(*plugins, *options).parseoutcomes()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("how", SKIPPED)
def test_a_skip_is_a_failure_where_none_are_allowed(pytester: pytest.Pytester, how: str) -> None:
    source = SKIPPED[how].format(reason="the native library was not built")
    plain = outcomes(pytester, source)
    assert plain.pop("skipped") == 1
    assert plain in ({"passed": 1}, {})  # of a module that is skipped, nothing runs
    strict = outcomes(pytester, source, "--no-skips")
    assert strict.pop("failed", 0) + strict.pop("errors", 0) + strict.pop("error", 0) == 1
    assert "skipped" not in strict


@pytest.mark.thinned(5)
@pytest.mark.parametrize("how", SKIPPED)
def test_what_a_machine_lacks_may_be_skipped(pytester: pytest.Pytester, how: str) -> None:
    source = SKIPPED[how].format(reason=Need.GPU.reason("no NVIDIA driver is found"))
    strict = outcomes(pytester, source, "--no-skips")
    assert strict.pop("skipped") == 1
    assert strict in ({"passed": 1}, {})


def test_a_missing_package_and_no_parameters_are_failures(pytester: pytest.Pytester) -> None:
    source = "@pytest.mark.parametrize('isa', [])\ndef test_it(isa): pass"
    assert outcomes(pytester, source)["skipped"] == 1
    assert outcomes(pytester, source, "--no-skips") == {"errors": 1, "passed": 1}
    source = "pytest.importorskip('no_such_package', reason='it is not installed')"
    assert outcomes(pytester, source)["skipped"] == 1
    assert "skipped" not in outcomes(pytester, source, "--no-skips")


def test_an_expected_failure_is_no_skip(pytester: pytest.Pytester) -> None:
    source = "@pytest.mark.xfail(strict=True)\ndef test_it(): assert False"
    assert outcomes(pytester, source, "--no-skips") == {"xfailed": 1, "passed": 1}


def test_reasons() -> None:
    assert allowed(Need.FILE.reason("shared/models/x"))
    assert allowed(f"Skipped: {Need.PROGRAM.reason('openssl')}")
    for reason in ("", "needs", "needs a GPU", "it needs a GPU: none", "needs a GPUs: none"):
        assert not allowed(reason)


def test_shared_data_may_stand_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("PENSTOCK_SHARED", str(tmp_path))
    shared.cache_clear()
    try:
        assert shared("models") == tmp_path / "models"
        assert not shared("nothing").exists()
    finally:
        shared.cache_clear()


def test_the_native_library_is_built_for_this_machine() -> None:
    """Never skipped: whatever else is missing, this says so."""
    assert native.runnable(), "the native library was not built; the reason is in pip's output (-v)"
    flags = detect().isa
    assert native.load().isa in native.runnable(flags)


def test_one_case_of_some_is_quick(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="module", params="xy")
        def each(request): return request.param

        @pytest.mark.thinned(3)
        @pytest.mark.parametrize("a", range(4))
        def test_many(a, each): pass

        def test_other(each): pass
        """
    )
    plugins = ("-p", "support.no_skips", "-p", "support.thinned", "-p", "no:cacheprovider")
    run = pytester.runpytest_inprocess(*plugins, "-v", "-m", "not slow")
    assert run.parseoutcomes() == {"passed": 3 + 2, "deselected": 5}
    cases = {line.partition("[")[2][:3] for line in run.outlines if "test_many[" in line}
    assert {case[0] for case in cases} == {"x", "y"}
    assert len({case[2] for case in cases}) == 3
    assert pytester.runpytest_inprocess(*plugins).parseoutcomes() == {"passed": 8 + 2}
    shares = []
    for share in ("1/2", "2/2"):
        run = pytester.runpytest_inprocess(*plugins, "-v", "-m", "slow", "--share", share)
        lines = [line for line in run.outlines if "test_many[" in line]
        shares.append({line.partition("[")[2].partition("]")[0] for line in lines})
    assert sorted(map(len, shares)) == [2, 3]
    assert not shares[0] & shares[1]
    assert not {case[:3] for share in shares for case in share} & cases
