"""The stages of a pipeline as the engine sees them: started or found, fed, watched and ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

from penstock.engine.ranks.steps import StepFrame
from penstock.engine.ranks.wire import Failed, Measured, named
from penstock.engine.stages.flights import Flight, Flights
from penstock.engine.stages.places import EXIT_GRACE_S, FarStage, NearStage
from penstock.engine.stages.wire import (
    SILENCE_S,
    Alive,
    AskMeasured,
    FromStage,
    JoinPipeline,
    StageLoaded,
    StageResult,
    StageStep,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.interface.executor import OpTime
from penstock.peers.channel import Channel, EndedError, Payload

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
        self._asking: set[int] = set()
        """The stages that wait to be told what a text says of the model."""
        self._measured: Measured | None = None
        """That, once it is known."""
        self._loaded: dict[int, list[tuple[int, str]]] = {}
        """Notes of each stage that is ready for steps."""
        self.flights = Flights(len(stages))
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
        """Send what a text says of the model to every stage that asks for it, or will. Raises the
        error of one that failed."""
        with self._changed:
            self._measured = measured
            asking, self._asking = self._asking, set()
        for number in sorted(asking):
            self._send(number, measured)

    def wait_asked(self) -> bool:
        """Return whether a stage waits to be told what a text says of the model, once all that do
        not are ready for steps. Raises the error of one that failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or bool(self._asking) or self._all_loaded,
                START_TIMEOUT_S,
            )
            asked = bool(self._asking)
        self.check()
        return asked

    @property
    def _all_loaded(self) -> bool:
        return len(self._loaded) == len(self.stages)

    def wait_loaded(self) -> list[tuple[int, int, str]]:
        """Return once every stage is ready for steps: notes, each with its stage and its level.
        Raises the error of one that failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._all_loaded, START_TIMEOUT_S
            )
        self.check()
        if not self._all_loaded:
            raise EngineDeadError(f"stages were not ready within {START_TIMEOUT_S:.0f} seconds")
        notes = sorted(self._loaded.items())
        return [(stage, *note) for stage, its in notes for note in its]

    def check(self) -> None:
        """Raise the error with which a stage has failed, if one has."""
        if self._failure is not None:
            raise self._failure

    def send(self, number: int, step: StepFrame, *, is_timed: bool = False) -> None:
        """Have the stages run a step, and time its ops. Raises the error of a stage that has
        failed."""
        self.check()
        with self._changed:
            flight = self.flights.begin(number, step, is_timed)
        self._begin(0, number, flight)

    def wait(self, number: int) -> tuple[Payload, list[OpTime]]:
        """Return what the last of these stages hands on of a step, and what the ops of all took, in
        their order, if that was wanted. Raises the error of a stage that has failed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self.flights.is_done(number), STEP_TIMEOUT_S
            )
            is_done = self.flights.is_done(number)
            flight = self.flights.end(number)
        if is_done and flight.rows is not None:
            return flight.rows, [op for _, ops in sorted(flight.ops.items()) for op in ops]
        self.check()
        raise EngineDeadError(
            f"{self._name(min(flight.at, len(self.stages) - 1))} has not finished a step within "
            f"{STEP_TIMEOUT_S:.0f} seconds"
        )

    def failure(self, patience: float) -> PenstockError | None:
        """Return the error with which a stage has failed, or does within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, patience)
        return self._failure

    def fail(self, error: PenstockError) -> None:
        """Give the pipeline up, with this error if it has none yet. From any thread."""
        with self._changed:
            if self._failure is None and not self._closing:
                self._failure = error
            self._changed.notify_all()
            channels = [channel for channel in self._channels if channel is not None]
        for channel in channels:
            channel.shutdown()

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
            self.fail(
                EngineDeadError(
                    f"{self._name(number)} has not been heard of for {SILENCE_S:.0f} seconds"
                )
            )
        except EndedError:
            if not self._closing:
                self.fail(EngineDeadError(f"{self._name(number)} {stage.end()}"))
        except PenstockError as error:
            self.fail(named_error(error, self._name(number)))
        except OSError as error:
            if not self._closing:
                self.fail(EngineDeadError(f"{self._name(number)} {stage.end()} ({error})"))
        except BaseException as error:  # nobody else would tell those who wait
            self.fail(EngineDeadError(f"{self._name(number)} cannot be watched: {error!r}"))
            raise
        finally:
            opened = self._channels[number]
            if opened is not None:
                opened.shutdown()
            stage.close(EXIT_GRACE_S)
            if opened is not None:
                opened.close()

    def _read(self, number: int, channel: Channel[FromStage]) -> None:
        while True:
            frame = channel.receive()
            match message := frame.message:
                case StageResult():
                    self._pass_on(number, message, frame.payload)
                case AskMeasured():
                    self._ask(number)
                case StageLoaded(notes, feeds):
                    with self._changed:
                        self.flights.feeding |= {number} if feeds else set()
                        self._loaded[number] = notes
                        self._changed.notify_all()
                case Failed():
                    raise message.error()
                case Alive():
                    pass

    def _ask(self, number: int) -> None:
        """Tell a stage what a text says of the model, or note that it wants to know."""
        with self._changed:
            measured = self._measured
            if measured is None:
                self._asking.add(number)
                self._changed.notify_all()
        if measured is not None:
            self._send(number, measured)

    def _pass_on(self, stage: int, result: StageResult, payload: Payload) -> None:
        """Take in that a stage has run a step, and what it hands on unless it feeds the next."""
        with self._changed:
            flight = self.flights.ran(stage, result, payload)
            self._changed.notify_all()
        if flight is not None:
            self._begin(stage + 1, result.number, flight, payload)

    def _begin(self, stage: int, number: int, flight: Flight, *payload: Payload) -> None:
        """Have a stage run a step, and those after it that are fed."""
        self._send(stage, StageStep(number, flight.step, False, flight.is_timed), *payload)
        while stage in self.flights.feeding:
            stage += 1
            self._send(stage, StageStep(number, flight.step, True, flight.is_timed))

    def _send(self, number: int, message: Measured | StageStep, *payload: Payload) -> None:
        channel = self._channels[number]
        assert channel is not None, "stages were started"
        try:
            channel.send(message, *payload)
        except OSError as error:
            raise self.failure(EXIT_GRACE_S) or EngineDeadError(
                f"{self._name(number)} takes nothing in: {error}"
            ) from error

    def _name(self, number: int) -> str:
        return f"stage {number}{self.stages[number]}"


def named_error(error: PenstockError, name: str) -> PenstockError:
    """Return the same error, which says whose it is."""
    return named(type(error), str(error), name)
