"""The thread of an engine's process that sends signs of life."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from penstock.engine.ipc import heartbeat
from penstock.engine.ipc.step_meter import StepMeter


def test_the_thread_has_ended_when_the_loop_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may refer to the core, which could not be collected if it outlived the interpreter."""
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.001)
    asked = threading.Event()
    threads: list[threading.Thread] = []

    def failure() -> None:
        threads.append(threading.current_thread())
        asked.set()
        time.sleep(0.2)

    class Frames:
        def send(self, data: bytes) -> None:
            pass

    with heartbeat.heartbeat(StepMeter(), cast(Any, Frames()), failure):
        assert asked.wait(60)
    assert not threads[0].is_alive()
