"""``@pytest.mark.thinned(n)``: the whole suite runs one case of ``n``, and all with ``--slow``.

``--share 2/3`` runs of the cases that this leaves out the second third, every third case of each
test: whoever runs the slow tests often, another share each time, sees all of them.

For tests of the same thing at very many points. Cases count in the order in which parameters are
written: an ``n`` that shares no factor with their numbers meets every value of each. Tests without
a mark have that of their folder (``FOLDERS``).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pytest

FOLDERS: Final[Mapping[str, int]] = {
    "tests/artifact/": 2,
    "tests/backends/cuda/": 5,  # kernels that are interpreted; before the folder that it is in
    "tests/backends/": 2,
    "tests/bench/load/": 3,
    "tests/cli/": 2,
    "tests/convert/": 2,
    "tests/engine/": 2,
    "tests/plan/": 2,
    "tests/quantize/": 3,
    "tests/server/": 2,
}
"""Folders whose tests have most of the time of the whole suite."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        type=_share,
        metavar="K/N",
        help="of the cases that thinning leaves out, and slow tests are, run the K-th of N shares",
    )


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, shares = config.option.share or (1, 1)
    seen: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    others = set()
    for item in sorted(items, key=_written):
        test = item.nodeid.partition("[")[0]
        if seen[test] % _one_of(item):
            item.add_marker("slow")
            left_out[test] += 1
            if left_out[test] % shares != number % shares:
                others.add(item)
        seen[test] += 1
    if others:
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]


def _share(text: str) -> tuple[int, int]:
    number, _, shares = text.partition("/")
    try:
        share = int(number), int(shares)
    except ValueError:
        share = 0, 0
    if not 1 <= share[0] <= share[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 1/3, 2/3 or 3/3")
    return share


def _one_of(item: pytest.Item) -> int:
    """The number of cases of which one is run."""
    mark = item.get_closest_marker("thinned")
    if mark is not None:
        number: int = mark.args[0]
        return number
    return next((n for folder, n in FOLDERS.items() if item.nodeid.startswith(folder)), 1)


def _written(item: pytest.Item) -> tuple[int, ...]:
    """Orders the cases of one test as they are written: fixtures of a module regroup items."""
    callspec = getattr(item, "callspec", None)
    return tuple(callspec.indices.values()) if callspec is not None else ()
