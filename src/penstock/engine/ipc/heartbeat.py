"""The signs of life that an engine's process sends to its front end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from penstock.engine.ipc.step_meter import StepMeter
from penstock.engine.ipc.wire import BEAT_S, Beat, Fatal, FrameSocket, encode_frame
from penstock.errors import PenstockError

_LAST_BEAT_S: Final = 2.0
"""Longest time, in seconds, that the end of the loop waits for a beat that is being sent: a front
end that does not read must not keep the process from ending."""


@contextlib.contextmanager
def heartbeat(
    meter: StepMeter, frames: FrameSocket, failure: Callable[[], PenstockError | None]
) -> Iterator[None]:
    """Send a :class:`Beat` every ``BEAT_S`` seconds while the context is entered, with the seconds
    that the current step has run. If ``failure`` returns an error between steps, send it and end
    the loop; a failure within a step is raised by the step itself.

    A thread of its own sends them. So the front end can tell a process that was stopped or swapped
    out, which sends nothing, from a step that does not end. The exit waits for the thread: it may
    refer to the core through ``failure``, objects that a thread refers to when the interpreter ends
    are never collected, and nanobind would report them as leaks.
    """
    stop = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # the front end is gone, as the loop will see
            while not stop.wait(BEAT_S):
                seconds, error = meter.seconds_in_step(), failure()
                if error is not None and seconds == 0:
                    frames.send(encode_frame(Fatal(type(error).__name__, str(error))))
                    frames.stop_receiving()
                    return
                frames.send(encode_frame(Beat(seconds)))

    thread = threading.Thread(target=beat, name="penstock-heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LAST_BEAT_S)
