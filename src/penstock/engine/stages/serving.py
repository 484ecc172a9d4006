"""What a stage does for an engine: load its part of the model, then run steps, until it ends."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from penstock.engine.ranks.wire import Failed, Loaded, Measured
from penstock.engine.stages.channel import Channel
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.wire import (
    BEAT_S,
    Alive,
    JoinPipeline,
    StageResult,
    StageStep,
    ToStage,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.interface.executor import Executor
from penstock.plan.stages import Stage
from penstock.processes.frames import WireError

M = TypeVar("M", bound=msgspec.Struct)

_GRACE_S: Final = 5.0
"""Seconds in which an engine that was told of an error ends the connection."""


def serve_engine(
    channel: Channel[ToStage],
    options: StageOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve the engine behind ``channel`` until it ends, and tell it of an error that ends this.

    ``options``: of a stage that is no child of the engine. ``say`` is told what goes on.
    """
    arrivals = _Arrivals(channel)
    try:
        _serve(channel, arrivals, options, say)
        return
    except PenstockError as error:
        failed = Failed(type(error).__name__, str(error))
    except (BrokenPipeError, ConnectionResetError):
        return  # the engine is gone: there is nobody to report to
    except OSError as error:
        failed = Failed(EngineDeadError.__name__, f"its connection failed: {error}")
    except BaseException as error:
        failed = Failed(EngineDeadError.__name__, f"it failed:\n{traceback.format_exc()}")
        if isinstance(error, KeyboardInterrupt):
            raise
    say(failed.message)
    with contextlib.suppress(OSError, WireError):
        channel.send(failed)
        # What is still on its way is taken in: closed before, the connection would be reset, and
        # the engine might never read the error.
        channel.finish()
        arrivals.drain(_GRACE_S)


class _Arrivals:
    """What an engine sends, taken in by a thread of its own: so the engine never waits for a stage
    that loads or computes."""

    def __init__(self, channel: Channel[ToStage]) -> None:
        self._channel = channel
        self._queue: queue.SimpleQueue[ToStage | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="penstock-stage-read", daemon=True)
        self._thread.start()

    def next(self, kind: type[M]) -> M | None:
        """Wait for the next message, which must be a ``kind``; None where the engine has ended.
        Raises WireError, and OSError where the connection failed."""
        message = self._queue.get()
        if isinstance(message, BaseException):
            raise message
        if message is None or isinstance(message, kind):
            return message
        raise WireError(f"a {type(message).__name__} message came out of turn")

    def drain(self, patience: float) -> None:
        """Wait for the end of what the engine sends, at most so many seconds."""
        self._thread.join(patience)

    def _read(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._queue.put(message)
        except BaseException as error:
            self._queue.put(error)
        self._queue.put(None)


def _serve(
    channel: Channel[ToStage],
    arrivals: _Arrivals,
    options: StageOptions | None,
    say: Callable[[str], None],
) -> None:
    join = arrivals.next(JoinPipeline)
    if join is None:
        return
    with _beating(channel):
        from penstock.engine.stages.planning import plan_stage

        planned = plan_stage(join, options)
        measured = arrivals.next(Measured)
        if measured is None:
            return
        executor, stage = planned.load(measured)
        try:
            channel.send(Loaded([]))
            say(f"layers {stage.layers[0]} to {stage.layers[1] - 1} are loaded")
            gc.collect()
            gc.freeze()
            _run(channel, arrivals, executor, stage)
        finally:
            executor.close()
            gc.unfreeze()


def _run(channel: Channel[ToStage], arrivals: _Arrivals, executor: Executor, stage: Stage) -> None:
    """Run steps in the order in which they come."""
    from penstock.engine.ranks.steps import decoded
    from penstock.engine.stages.columns import handed_on, own_step
    from penstock.interface.executor import run

    while (message := arrivals.next(StageStep)) is not None:
        try:
            result = run(executor, own_step(stage, decoded(message.step), message.columns))
        except ValueError as error:
            raise WireError(f"a step is malformed: {error}") from error
        channel.send(StageResult(message.number, handed_on(stage, result)))


@contextlib.contextmanager
def _beating(channel: Channel[ToStage]) -> Iterator[None]:
    """Send signs of life meanwhile, from a thread of their own."""
    stop = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # the engine is gone, as whoever receives will see
            while not stop.wait(BEAT_S):
                channel.send(Alive())

    thread = threading.Thread(target=beat, name="penstock-stage-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
