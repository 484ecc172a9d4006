"""The loop of an engine's process, between the messages of the front end and the core."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.engine.ipc.core_loader import LoadedCore
from penstock.engine.ipc.heartbeat import heartbeat
from penstock.engine.ipc.step_meter import StepMeter
from penstock.engine.ipc.wire import (
    AdapterReply,
    CacheQuery,
    CacheReply,
    CheckIntegrity,
    Done,
    DropAdapter,
    FrameSocket,
    FromEngine,
    LoadAdapter,
    Refused,
    ResetCache,
    Shutdown,
    StatsQuery,
    StatsReply,
    encode_frame,
    encode_updates,
)
from penstock.engine.stepped import Core
from penstock.errors import PenstockError, RequestError
from penstock.interface.messages import Abort, EngineRequest, FinishReason, SequenceUpdate
from penstock.processes.frames import WireError


class EngineLoop:
    """Receives messages, steps the core and sends the results, until it is shut down."""

    def __init__(self, loaded: LoadedCore, frames: FrameSocket) -> None:
        self._core = loaded.core
        self._failure = loaded.failure
        self._wake = loaded.wake
        self._frames = frames
        self._meter = StepMeter()
        self._epoch = os.urandom(8).hex()

    def run(self) -> None:
        """Run until the front end sends Shutdown or closes its end, or until the core has failed
        between steps, which the heartbeat has then reported."""
        with heartbeat(self._meter, self._frames, self._failure):
            self._loop()

    def _loop(self) -> None:
        while True:
            # Never wait while there is work: arrivals join the very next step.
            messages = self._frames.receive(not self._core.has_work, self._wake)
            if messages is None:
                return
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._handle(message)
            if self._core.has_work:
                self._send_updates(self._step())

    def _step(self) -> list[SequenceUpdate]:
        before = self._core.tokens_computed
        self._meter.begin()
        updates = self._core.step()
        self._meter.end(self._core.tokens_computed - before)
        return updates

    def _handle(self, message: object) -> None:
        match message:
            case EngineRequest():
                try:
                    self._core.add_request(message)
                except RequestError as error:
                    self._send(Refused(message.request_id, str(error), error.param))
            case Abort():
                self._send_updates(self._core.abort(message.request_ids, message.index))
            case StatsQuery():
                stats = self._meter.added_to(self._core.stats())
                self._send(StatsReply(message.query_id, stats))
            case CacheQuery():
                self._send(self._cache_reply(message))
            case ResetCache():
                self._send(Done(message.query_id, _trouble(self._core.reset_prefix_cache)))
            case LoadAdapter():
                self._send(_loaded(self._core, message))
            case DropAdapter():
                self._core.drop_adapter(message.digest)
                self._send(Done(message.query_id))
            case CheckIntegrity():
                self._send(Done(message.query_id, _trouble(self._core.check_integrity)))
            case _:
                raise WireError(f"a {type(message).__name__} message came out of turn")

    def _cache_reply(self, query: CacheQuery) -> CacheReply:
        position = query.position if query.epoch == self._epoch else None
        changes = self._core.cache_changes(position)
        return CacheReply(
            query_id=query.query_id,
            epoch=self._epoch,
            since=changes.since,
            until=changes.until,
            added=b"".join(changes.added),
            removed=b"".join(changes.removed),
        )

    def _send_updates(self, updates: list[SequenceUpdate]) -> None:
        if not updates:
            return
        frames, failed = encode_updates(updates)
        for frame in frames:
            self._frames.send(frame)
        for update, error in failed:
            self._core.abort([update.request_id])
            self._send_updates(
                [
                    SequenceUpdate(
                        request_id=update.request_id,
                        index=update.index,
                        token_ids=[],
                        finish_reason=FinishReason.ERROR,
                        error=str(error),
                    )
                ]
            )

    def _send(self, message: FromEngine) -> None:
        self._frames.send(encode_frame(message))


def _trouble(command: Callable[[], None]) -> str | None:
    """Carry out a command; return its error message, or None."""
    try:
        command()
    except (PenstockError, AssertionError) as error:
        return str(error) or type(error).__name__
    return None


def _loaded(core: Core, message: LoadAdapter) -> AdapterReply:
    """Load an adapter between two steps; the next one waits for it."""
    try:
        return AdapterReply(query_id=message.query_id, digest=core.load_adapter(message.path))
    except PenstockError as error:
        return AdapterReply(
            query_id=message.query_id, kind=type(error).__name__, message=str(error)
        )
