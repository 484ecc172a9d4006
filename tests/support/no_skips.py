"""``pytest --no-skips``: a skip whose reason :mod:`support.needs` does not list is a failure."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from support.needs import Need, allowed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail every test that is skipped, unless for what a machine may lack: "
        + ", ".join(str(need).removeprefix("needs ") for need in Need),
    )


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"with --no-skips no test may be skipped for this: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.option.no_skips:
        _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.config.option.no_skips:
        _judge(report)
    return report
