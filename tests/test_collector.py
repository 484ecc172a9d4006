"""What is made while the collector rests is not looked at afterwards, and nothing else changes."""

from __future__ import annotations

import gc

import pytest

from penstock.collector import uncollected


def test_nothing_is_collected_within() -> None:
    assert gc.isenabled()
    before = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made = [[] for _ in range(10_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 / 0
    assert gc.isenabled()
    gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        before = gc.get_freeze_count()
        with uncollected():
            pass
        assert not gc.isenabled()
        assert gc.get_freeze_count() == before
    finally:
        gc.enable()
