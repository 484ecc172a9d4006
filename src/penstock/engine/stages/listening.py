"""A stage that waits for its engine on a port: one engine after the other."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.engine.ranks.wire import Failed
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.serving import serve_engine
from penstock.engine.stages.wire import TO_STAGE, Fed, FeedStage, JoinPipeline, ToStage, stage_party
from penstock.errors import ConfigError, PenstockError
from penstock.peers.channel import Channel
from penstock.peers.handshake import HANDSHAKE_S
from penstock.peers.listener import Listener
from penstock.processes.frames import WireError

_GRACE_S: Final = 5.0
"""Seconds in which who is refused reads why."""
_LEAVING_S: Final = 5.0
"""Seconds in which an engine that has ended its connection is gone: the next one may come while its
model is put away."""


@dataclass(frozen=True)
class _Engine:
    channel: Channel[ToStage]
    name: str
    join: JoinPipeline


class StageServer:
    """Serves engines that connect to ``listener``, one at a time, others are told that it is busy;
    and lets the stage before feed it, of the same pipeline."""

    def __init__(
        self, listener: Listener, options: StageOptions, say: Callable[[str], None]
    ) -> None:
        """``listener`` is listened on from now on. ``say`` is told of engines that come and go."""
        self._listener = listener
        self._options = options
        self._say = say
        self._arrived: queue.SimpleQueue[_Engine | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._engine: _Engine | None = None
        self._feed: Channel[ToStage] | None = None
        listener.start(stage_party(options.secret), TO_STAGE, self._arrive, say)

    def run(self) -> None:
        """Serve until :meth:`stop`, or an interrupt."""
        while (engine := self._arrived.get()) is not None:
            self._say(f"engine {engine.name} is here")
            try:
                serve_engine(
                    engine.channel, engine.join, self._options, self._say, lambda: self._feed
                )
            finally:
                engine.channel.close()
                with self._changed:
                    feed, self._feed, self._engine = self._feed, None, None
                    self._changed.notify_all()
                if feed is not None:
                    feed.close()
            self._say(f"engine {engine.name} has left")

    def stop(self) -> None:
        """Take no further engines. From any thread."""
        self._listener.close()
        self._arrived.put(None)

    # What the thread of a connection does.

    def _arrive(self, channel: Channel[ToStage], name: str) -> None:
        """Take somebody who has proved to know the secret, by the first message."""
        try:
            channel.set_deadline(HANDSHAKE_S)
            match channel.receive().message:
                case JoinPipeline() as join:
                    refusal = self._take(_Engine(channel, name, join))
                case FeedStage() as feed:
                    refusal = self._take_feed(channel, feed)
                case message:
                    raise WireError(f"a {type(message).__name__} message came out of turn")
            if refusal:
                self._say(f"{name} is refused: {refusal}")
                refuse(channel, refusal)
        except (PenstockError, OSError) as error:
            self._say(f"{name} is refused: {error}")
            channel.close()

    def _take(self, engine: _Engine) -> str:
        """Have an engine served, once the one before it has left; returns why not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._engine is None, _LEAVING_S):
                return "it serves another engine; end that, or start another stage"
            self._engine = engine
            self._changed.notify_all()
        engine.channel.set_timeout(None)
        self._arrived.put(engine)
        return ""

    def _take_feed(self, channel: Channel[ToStage], feed: FeedStage) -> str:
        """Have the stage before feed this one; returns why not. Its engine may come after it."""

        def is_expected() -> bool:
            return self._engine is not None and self._engine.join.session == feed.session

        with self._changed:
            self._changed.wait_for(is_expected, HANDSHAKE_S)
            if not is_expected() or self._engine is None or self._feed is not None:
                return "it is of another pipeline"
            if self._engine.join.stage != feed.stage:
                return f"it is stage {self._engine.join.stage}, not {feed.stage}"
            self._feed = channel
        channel.set_timeout(None)
        channel.send(Fed())
        return ""


def refuse(channel: Channel[ToStage], why: str) -> None:
    """Tell who has connected, and end the connection once that is read."""
    with contextlib.suppress(OSError, PenstockError):
        channel.send(Failed(ConfigError.__name__, why))
        channel.finish()
        # Else the connection would be reset before that is read: what is sent meanwhile is taken
        # in.
        channel.set_deadline(_GRACE_S)
        while True:
            channel.receive()
    channel.close()
