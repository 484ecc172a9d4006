"""The thread of an engine that sends signs of life."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from penstock.engine.ipc import child
from penstock.engine.ipc.step_meter import StepMeter


def test_it_has_let_go_of_the_core_when_the_loop_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the core whether it has failed, and a thread that is alive when the interpreter ends
    keeps what it refers to from being collected."""
    monkeypatch.setattr(child, "BEAT_S", 0.001)
    asked = threading.Event()
    threads: list[threading.Thread] = []

    def failure() -> None:
        threads.append(threading.current_thread())
        asked.set()
        time.sleep(0.2)

    class Frames:
        def send(self, data: bytes) -> None:
            pass

    with child._heart(StepMeter(), cast(Any, Frames()), failure):
        assert asked.wait(60)
    assert not threads[0].is_alive()
