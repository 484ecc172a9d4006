"""``@pytest.mark.thinned(n)``: the whole suite runs one case of ``n``, and all with ``--slow``.

For tests of the same thing at very many points. Cases count in the order in which parameters are
written: an ``n`` that shares no factor with their numbers meets every value of each.
"""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in sorted(items, key=_written):
        mark = item.get_closest_marker("thinned")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            if seen[test] % mark.args[0]:
                item.add_marker("slow")
            seen[test] += 1


def _written(item: pytest.Item) -> tuple[int, ...]:
    """Orders the cases of one test as they are written: fixtures of a module regroup items."""
    callspec = getattr(item, "callspec", None)
    return tuple(callspec.indices.values()) if callspec is not None else ()
