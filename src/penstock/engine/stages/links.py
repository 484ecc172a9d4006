"""The stages of a pipeline as the engine sees them: started or found, fed, watched and ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

import penstock.errors as errors
from penstock.engine.ranks.steps import StepFrame
from penstock.engine.ranks.wire import Failed, Loaded, Measured
from penstock.engine.stages.channel import Channel
from penstock.engine.stages.places import EXIT_GRACE_S, FarStage, NearStage
from penstock.engine.stages.wire import (
    SILENCE_S,
    Alive,
    FromStage,
    JoinPipeline,
    StageResult,
    StageStep,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.processes.frames import WireError

START_TIMEOUT_S: Final = 1800.0
"""Seconds after which a start counts as hung, as that of an engine's process."""
STEP_TIMEOUT_S: Final = 600.0
"""Seconds that the stages may take for a step: it is far shorter, even on a busy machine."""


class StageLinks:
    """The stages before the last.

    Each has a thread, which starts it, since the system ends a process with the thread that started
    it, and passes on what it sends. The first stage that fails or ends gives the pipeline up.
    """

    def __init__(self, stages: Sequence[NearStage | FarStage]) -> None:
        self.stages = stages
        self._made_in = os.getpid()
        self._channels: list[Channel[FromStage] | None] = [None] * len(stages)
        self._changed = threading.Condition()
        self._opened = 0
        self._loaded = 0
        self._frames: dict[int, StepFrame] = {}
        """The steps that not all stages have run."""
        self._at: dict[int, int] = {}
        """The stage that has each of these."""
        self._done: dict[int, list[bytes]] = {}
        self._failure: PenstockError | None = None
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Those of the stages that are child processes."""
        processes = (stage.process for stage in self.stages)
        return tuple(process.pid for process in processes if process is not None)

    def start(self, joins: Sequence[JoinPipeline]) -> None:
        """Start or find all stages, and tell each what to load. Raises the error of the first that
        cannot be had."""
        for number, join in enumerate(joins):
            thread = threading.Thread(
                target=self._serve,
                args=(number, join),
                name=f"penstock-stage-{number}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._opened == len(self.stages)
            )
        self.check()

    def tell(self, measured: Measured) -> None:
        """Send what a text says of the model to every stage. Raises the error of one that
        failed."""
        for number in range(len(self.stages)):
            self._send(number, measured)

    def wait_loaded(self) -> None:
        """Return once every stage is ready for steps. Raises the error of one that failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._loaded == len(self.stages),
                START_TIMEOUT_S,
            )
        self.check()
        if self._loaded < len(self.stages):
            raise EngineDeadError(f"stages were not ready within {START_TIMEOUT_S:.0f} seconds")

    def check(self) -> None:
        """Raise the error with which a stage has failed, if one has."""
        if self._failure is not None:
            raise self._failure

    def send(self, number: int, step: StepFrame) -> None:
        """Send a step to the first stage. Raises the error of a stage that has failed."""
        self.check()
        with self._changed:
            self._frames[number], self._at[number] = step, 0
        self._send(0, StageStep(number, step, []))

    def wait(self, number: int) -> list[bytes]:
        """Return what the last of these stages hands on of a step. Raises the error of a stage that
        has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or number in self._done, STEP_TIMEOUT_S
            )
            if number in self._done:
                return self._done.pop(number)
            at = self._at.get(number, 0)
        self.check()
        raise EngineDeadError(
            f"{self._name(at)} has not finished a step within {STEP_TIMEOUT_S:.0f} seconds"
        )

    def failure(self, patience: float) -> PenstockError | None:
        """Return the error with which a stage has failed, or does within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, patience)
        return self._failure

    def fail(self, why: str) -> None:
        """Give the pipeline up, because stages are not at the same steps any more. From any
        thread."""
        self._fail(EngineDeadError(why))

    def close(self) -> None:
        """End all stages that are child processes, and the connections to others. Calls after the
        first do nothing, and neither do those in a fork."""
        if os.getpid() != self._made_in:
            return
        with self._changed:
            if self._closing:
                return
            self._closing = True
            channels = [channel for channel in self._channels if channel is not None]
        for channel in channels:
            channel.shutdown()
        for thread in self._threads:
            thread.join(3 * EXIT_GRACE_S)

    # What the threads do.

    def _serve(self, number: int, join: JoinPipeline) -> None:
        stage = self.stages[number]
        try:
            channel = stage.open()
            with self._changed:
                self._channels[number] = channel
                closing = self._closing
            if closing:
                channel.shutdown()
            channel.send(join)
            with self._changed:
                self._opened += 1
                self._changed.notify_all()
            self._read(number, channel)
        except TimeoutError:
            self._fail(
                EngineDeadError(
                    f"{self._name(number)} has not been heard of for {SILENCE_S:.0f} seconds"
                )
            )
        except PenstockError as error:
            self._fail(_named(error, self._name(number)))
        except OSError as error:
            if not self._closing:
                self._fail(EngineDeadError(f"{self._name(number)} {stage.end()} ({error})"))
        except BaseException as error:  # nobody else would tell those who wait
            self._fail(EngineDeadError(f"{self._name(number)} cannot be watched: {error!r}"))
            raise
        finally:
            opened = self._channels[number]
            if opened is not None:
                opened.shutdown()
            stage.close(EXIT_GRACE_S)
            if opened is not None:
                opened.close()

    def _read(self, number: int, channel: Channel[FromStage]) -> None:
        while (message := channel.receive()) is not None:
            match message:
                case StageResult():
                    self._pass_on(number, message)
                case Loaded():
                    with self._changed:
                        self._loaded += 1
                        self._changed.notify_all()
                case Failed():
                    raise _error(message)
                case Alive():
                    pass
        if not self._closing:
            self._fail(EngineDeadError(f"{self._name(number)} {self.stages[number].end()}"))

    def _pass_on(self, number: int, result: StageResult) -> None:
        step = self._frames.get(result.number)
        if step is None or self._at.get(result.number) != number:
            raise WireError(f"step {result.number} came from a stage that does not have it")
        if number + 1 < len(self.stages):
            with self._changed:
                self._at[result.number] = number + 1
            self._send(number + 1, StageStep(result.number, step, result.columns))
            return
        with self._changed:
            del self._frames[result.number], self._at[result.number]
            self._done[result.number] = result.columns
            self._changed.notify_all()

    def _send(self, number: int, message: Measured | StageStep) -> None:
        channel = self._channels[number]
        assert channel is not None, "stages were started"
        try:
            channel.send(message)
        except OSError as error:
            raise self.failure(EXIT_GRACE_S) or EngineDeadError(
                f"{self._name(number)} takes nothing in: {error}"
            ) from error

    def _name(self, number: int) -> str:
        return f"stage {number}{self.stages[number]}"

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            if self._failure is None and not self._closing:
                self._failure = error
            self._changed.notify_all()
            channels = [channel for channel in self._channels if channel is not None]
        for channel in channels:
            channel.shutdown()


def _error(failed: Failed) -> PenstockError:
    """The stage's error, of the class it had there if that is one of penstock.errors."""
    kind = getattr(errors, failed.kind, EngineDeadError)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(failed.message)
    return EngineDeadError(failed.message)


def _named(error: PenstockError, name: str) -> PenstockError:
    """The same error, which says whose it is."""
    kind = type(error) if hasattr(errors, type(error).__name__) else EngineDeadError
    return kind(f"{name}: {error}")
