"""A stage that waits for its engine on a port: one engine after the other."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.engine.ranks.wire import Failed
from penstock.engine.stages.channel import Channel
from penstock.engine.stages.handshake import HANDSHAKE_S, as_stage
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.serving import serve_engine
from penstock.engine.stages.sockets import prepare
from penstock.engine.stages.wire import ToStage
from penstock.errors import ConfigError, PenstockError

_STRANGERS: Final = 8
"""Connections that may be in their handshake at once; more are closed."""
_PIECES: Final = 64
"""Pieces that are taken in at most of an engine that is refused."""


@dataclass(frozen=True)
class _Engine:
    channel: Channel[ToStage]
    sock: socket.socket
    name: str


class StageServer:
    """Serves engines that connect to ``listener``, one at a time; others are told that it is busy.

    Handshakes are made by threads of their own, so that nobody who says nothing keeps others out.
    """

    def __init__(
        self,
        listener: socket.socket,
        options: StageOptions,
        secret: bytes | None,
        say: Callable[[str], None],
    ) -> None:
        """``listener`` is bound, and listens from now on. ``say`` is told of engines that come and
        go. Raises OSError."""
        listener.listen()
        self._listener = listener
        self._options = options
        self._secret = secret
        self._say = say
        self._arrived: queue.SimpleQueue[_Engine | OSError] = queue.SimpleQueue()
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._busy = threading.Lock()
        self._stopped = False

    def run(self) -> None:
        """Serve until :meth:`stop`, or an interrupt. Raises OSError where the port is lost."""
        threading.Thread(target=self._accept, name="penstock-stage-accept", daemon=True).start()
        while True:
            engine = self._arrived.get()
            if isinstance(engine, OSError):
                if self._stopped:
                    return
                raise engine
            self._say(f"engine {engine.name} is here")
            try:
                serve_engine(engine.channel, self._options, self._say)
            finally:
                engine.channel.finish()
                engine.channel.close()
                self._busy.release()
            self._say(f"engine {engine.name} has left")

    def stop(self) -> None:
        """Take no further engines. From any thread."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._arrived.put(error)
                return
            if not self._strangers.acquire(blocking=False):
                sock.close()
                continue
            name = f"{peer[0]}:{peer[1]}"
            threading.Thread(target=self._greet, args=(sock, name), daemon=True).start()

    def _greet(self, sock: socket.socket, name: str) -> None:
        try:
            prepare(sock)
            channel = as_stage(sock, self._secret)
            sock.settimeout(None)  # an engine without requests sends nothing
        except (PenstockError, OSError) as error:
            self._say(f"{name} is refused: {error}")
            sock.close()
            return
        finally:
            self._strangers.release()
        if self._busy.acquire(blocking=False):
            self._arrived.put(_Engine(channel, sock, name))
            return
        self._say(f"engine {name} is refused: another one is here")
        with contextlib.suppress(OSError):
            busy = "it serves another engine; end that, or start another stage"
            channel.send(Failed(ConfigError.__name__, busy))
            channel.finish()
            sock.settimeout(HANDSHAKE_S)
            # Else the connection would be reset before that is read: what an engine says first is
            # taken in.
            for _ in range(_PIECES):
                if not sock.recv(1 << 16):
                    break
        sock.close()
