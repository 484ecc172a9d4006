"""What is made while the collector rests is not looked at afterwards, and nothing else changes."""

from __future__ import annotations

import gc

import pytest

from penstock.collector import paused, uncollected


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


def test_a_pause_hides_nothing() -> None:
    assert gc.isenabled()
    before = gc.get_freeze_count()
    with paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        before = gc.get_freeze_count()
        for resting in (uncollected, paused):
            with resting():
                pass
        assert not gc.isenabled()
        assert gc.get_freeze_count() == before
    finally:
        gc.enable()
