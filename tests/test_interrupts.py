"""Ctrl-C while an engine works."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from penstock.interrupts import Interrupts


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """A test run in the background inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_asks_and_the_second_raises() -> None:
    with Interrupts(interruptible=False) as interrupts:
        assert not interrupts.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupts.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_may_be_interrupted_is() -> None:
    with Interrupts(interruptible=True), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(interruptible=False) as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert not interrupts.asked
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
