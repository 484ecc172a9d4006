"""Stages that wait for their engine on a port, as on another host, in a thread of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.stages.listening import StageServer
from penstock.engine.stages.options import StageOptions
from penstock.peers.address import Address
from penstock.peers.listener import Listener
from support.waiting import PATIENCE_S, until


@dataclass
class Waiting:
    """A stage that waits, in a thread of this process."""

    address: str
    server: StageServer
    said: list[str] = field(default_factory=list)

    def until_said(self, words: str) -> None:
        until(lambda: any(words in line for line in self.said), PATIENCE_S, words)


@contextlib.contextmanager
def waiting(model: str = "", secret: bytes = b"", **options: Any) -> Iterator[Waiting]:
    listener = Listener(Address("127.0.0.1", 0), "--host")
    asked = StageOptions(
        model, revision=None, backend=None, threads=1, artifact_dir=None, secret=secret
    )
    said: list[str] = []
    server = StageServer(listener, StageOptions(**{**vars(asked), **options}), said.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Waiting(str(listener.address), server, said)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
