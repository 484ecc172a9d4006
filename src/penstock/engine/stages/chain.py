"""What a stage on one host hands to the next, on another, without the engine in between."""

from __future__ import annotations

from typing import Final

from penstock.engine.ranks.wire import Failed
from penstock.engine.stages.wire import (
    FROM_STAGE,
    Fed,
    FeedStage,
    FromStage,
    JoinPipeline,
    engine_party,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.peers.channel import Channel
from penstock.peers.handshake import HANDSHAKE_S
from penstock.peers.sockets import connect
from penstock.processes.frames import WireError

ANSWER_S: Final = 2 * HANDSHAKE_S
"""Seconds in which the next stage answers: it may wait for its engine meanwhile."""


def reach_next(join: JoinPipeline, secret: bytes) -> Channel[FromStage]:
    """Return a connection to the next stage, by which it is fed. Raises EngineDeadError where there
    is none to be had."""
    assert join.next is not None
    try:
        sock = connect(join.next, HANDSHAKE_S)
        channel: Channel[FromStage] = engine_party(secret).greet(sock, FROM_STAGE, connected=True)
    except (OSError, PenstockError) as error:
        raise EngineDeadError(str(error)) from error
    try:
        channel.set_deadline(ANSWER_S)
        channel.send(FeedStage(join.session, join.stage + 1))
        answer = channel.receive().message
        if isinstance(answer, Failed):
            raise EngineDeadError(answer.message)
        if not isinstance(answer, Fed):
            raise WireError(f"a {type(answer).__name__} message came out of turn")
        channel.set_timeout(None)
    except (OSError, PenstockError) as error:
        channel.close()
        raise EngineDeadError(str(error)) from error
    return channel
