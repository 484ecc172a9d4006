"""What a stage does for an engine: load its part of the model, then run steps, until it ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import msgspec

from penstock.engine.ranks.wire import Failed, Measured
from penstock.engine.stages.chain import reach_next
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.wire import (
    BEAT_S,
    Alive,
    AskMeasured,
    FromStage,
    JoinPipeline,
    Rows,
    StageLoaded,
    StageResult,
    StageStep,
    ToStage,
)
from penstock.errors import ConfigError, EngineDeadError, PenstockError
from penstock.interface.executor import Executor, OpTime, Profiling, failure_of, run
from penstock.interface.step import StepInput, StepResult
from penstock.peers.channel import Channel, EndedError, Frame, Payload
from penstock.plan.stages import Stage
from penstock.processes.frames import WireError

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays

M = TypeVar("M", bound=msgspec.Struct)

_GRACE_S: Final = 5.0
"""Seconds in which an engine that was told of an error ends the connection."""


def serve_engine(
    channel: Channel[ToStage],
    join: JoinPipeline,
    options: StageOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
    fed_by: Callable[[], Channel[ToStage] | None] = lambda: None,
) -> None:
    """Serve the engine behind ``channel`` until it ends, and tell it of an error that ends this.

    ``options``: of a stage that is no child of the engine. ``say`` is told what goes on.
    ``fed_by`` returns the connection of the stage before, if that has made one.
    """
    arrivals = Arrivals(channel)
    try:
        _serve(channel, join, arrivals, options, say, fed_by)
    except (EndedError, BrokenPipeError, ConnectionResetError):
        return  # the engine is gone: there is nobody to report to
    except PenstockError as error:
        failed = Failed.of(error)
    except OSError as error:
        failed = Failed(EngineDeadError.__name__, f"its connection failed: {error}")
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(OSError, WireError):
            channel.send(Failed(EngineDeadError.__name__, "it was ended on its host"))
        raise
    except BaseException:
        failed = Failed(EngineDeadError.__name__, f"it failed:\n{traceback.format_exc()}")
    say(failed.message)
    with contextlib.suppress(OSError, WireError):
        channel.send(failed)
        # What is still on its way is taken in: closed before, the connection would be reset, and
        # the engine might never read the error.
        channel.finish()
        arrivals.end(_GRACE_S)


class Arrivals:
    """What an engine sends, or the stage before, taken in by a thread of its own: so neither waits
    for a stage that loads or computes."""

    def __init__(self, channel: Channel[ToStage]) -> None:
        self._channel = channel
        self._queue: queue.SimpleQueue[Frame[ToStage] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="penstock-stage-read", daemon=True)
        self._thread.start()

    def next(self, kind: type[M]) -> tuple[M, Payload]:
        """Wait for the next message, which must be a ``kind``, and its payload. Raises EndedError
        where the other end has ended, WireError, and OSError where the connection failed."""
        frame = self._queue.get()
        if isinstance(frame, BaseException):
            raise frame
        if isinstance(frame.message, kind):
            return frame.message, frame.payload
        raise WireError(f"a {type(frame.message).__name__} message came out of turn")

    def end(self, patience: float) -> bool:
        """Wait for the end of what is sent, at most so many seconds; whether it has come."""
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _read(self) -> None:
        try:
            while True:
                self._queue.put(self._channel.receive())
        except BaseException as error:
            self._queue.put(error)


def _serve(
    channel: Channel[ToStage],
    join: JoinPipeline,
    arrivals: Arrivals,
    options: StageOptions | None,
    say: Callable[[str], None],
    fed_by: Callable[[], Channel[ToStage] | None],
) -> NoReturn:
    with contextlib.ExitStack() as opened:
        with _beating(channel):
            from penstock.engine.stages.planning import plan_stage

            planned, notes = plan_stage(join, options), list[tuple[int, str]]()
            stage = planned.engine_plan.stage
            assert stage is not None
            following = None
            if options is not None and join.next is not None:
                following = _following(join, options, notes)
            if following is not None:
                opened.callback(following.close)

            def measured() -> MeasuredArrays | None:
                channel.send(AskMeasured())
                return arrivals.next(Measured)[0].arrays()

            executor = planned.load(
                measured,
                lambda level, text: notes.append((level, text)),
            )
        opened.callback(gc.unfreeze)
        opened.callback(executor.close)
        channel.send(StageLoaded(notes, following is not None))
        say(f"layers {stage.layers[0]} to {stage.layers[1] - 1} are loaded")
        gc.collect()
        gc.freeze()
        with _beating(channel, lambda: failure_of(executor)):
            _Steps(channel, arrivals, executor, stage, fed_by, following).run()


def _following(
    join: JoinPipeline, options: StageOptions, notes: list[tuple[int, str]]
) -> Channel[FromStage] | None:
    """The connection to the next stage, if that can be reached."""
    try:
        return reach_next(join, options.secret)
    except EngineDeadError as error:
        notes.append(
            (
                logging.WARNING,
                f"it does not reach stage {join.stage + 1} at {join.next} ({error}); what it hands "
                "on goes through the engine's host",
            )
        )
        return None


@dataclass
class _Steps:
    """Runs steps in the order in which they come, and hands on what comes of them."""

    channel: Channel[ToStage]
    arrivals: Arrivals
    executor: Executor
    stage: Stage
    fed_by: Callable[[], Channel[ToStage] | None]
    following: Channel[FromStage] | None
    """The next stage, if it is fed by this one."""
    feed: Arrivals | None = None
    """What comes of the stage before, once that feeds this one."""

    def run(self) -> NoReturn:
        from penstock.engine.ranks.steps import decoded
        from penstock.engine.stages.columns import handed_on, own_step

        while True:
            message, payload = self.arrivals.next(StageStep)
            if message.is_fed:
                payload = self._fed(message.number)
            try:
                step = own_step(self.stage, decoded(message.step), payload)
                result, ops = self._timed(step) if message.is_timed else (self._run(step), [])
            except ValueError as error:
                raise WireError(f"a step is malformed: {error}") from error
            self._hand_on(StageResult(message.number, ops), handed_on(self.stage, result))

    def _run(self, step: StepInput) -> StepResult:
        return run(self.executor, step)

    def _timed(self, step: StepInput) -> tuple[StepResult, list[OpTime]]:
        if not isinstance(self.executor, Profiling):
            raise ConfigError(
                "its backend does not time single ops; leave --ops out, or start it with --backend "
                "cpu"
            )
        result, ops = self.executor.profile(step)
        return result, list(ops)

    def _fed(self, number: int) -> Payload:
        if self.feed is None:
            channel = self.fed_by()
            if channel is None:
                raise WireError("a step is to come from the stage before, which feeds nobody")
            self.feed = Arrivals(channel)
        try:
            rows, payload = self.feed.next(Rows)
        except (EndedError, OSError) as error:
            raise self._lost(self.stage.number - 1, "hands nothing on", error) from error
        if rows.number != number:
            raise WireError(f"rows of step {rows.number} came in place of those of step {number}")
        return payload

    def _hand_on(self, done: StageResult, rows: Sequence[Payload]) -> None:
        if self.following is None:
            self.channel.send(done, *rows)
            return
        try:
            self.following.send(Rows(done.number), *rows)
        except OSError as error:
            raise self._lost(self.stage.number + 1, "takes nothing in", error) from error
        self.channel.send(done)

    def _lost(self, other: int, does: str, error: Exception) -> PenstockError:
        """The error to tell where another stage is gone. The engine, which mostly knows why, is
        given the time to end this stage."""
        if self.arrivals.end(_GRACE_S):
            return EndedError("the engine has ended")
        return EngineDeadError(f"stage {other} {does}, as this one sees it: {error}")


@contextlib.contextmanager
def _beating(
    channel: Channel[ToStage], failure: Callable[[], PenstockError | None] = lambda: None
) -> Iterator[None]:
    """Send signs of life meanwhile, from a thread of their own, until there is a ``failure``."""
    stop = threading.Event()

    def beat() -> None:
        with contextlib.suppress(OSError):  # the engine is gone, as whoever receives will see
            while not stop.wait(BEAT_S):
                if (error := failure()) is not None:
                    channel.send(Failed.of(error))
                    return
                channel.send(Alive())

    thread = threading.Thread(target=beat, name="penstock-stage-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
