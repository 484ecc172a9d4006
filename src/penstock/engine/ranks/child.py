"""The process of a rank other than the first: load a part of the model, then run steps.

Started by :class:`penstock.engine.ranks.processes.RankProcesses` as
``python -m penstock.engine.ranks.child --fd N``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.collector import uncollected
from penstock.engine.ranks.wire import (
    MAX_FRAME_BYTES,
    Failed,
    JoinGroup,
    Loaded,
    Looked,
    Measured,
    ToRank,
)
from penstock.errors import ConfigError, EngineDeadError, PenstockError
from penstock.interface.executor import Executor
from penstock.processes.family import end_with_parent
from penstock.processes.frames import FrameReader, WireError, encode

if TYPE_CHECKING:
    from penstock.engine.start import Start


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock.engine.ranks.child", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    options = parser.parse_args(arguments)
    # As in the engine's process: what ends the engine ends the ranks, and nothing else does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(os.getppid())
    with socket.socket(fileno=options.fd) as sock:
        try:
            _run(sock)
            return 0
        except PenstockError as error:
            failed = Failed.of(error)
        except (BrokenPipeError, ConnectionResetError):
            return 0  # rank 0 is gone: there is nobody to report to
        except BaseException:
            failed = Failed(EngineDeadError.__name__, f"it failed:\n{traceback.format_exc()}")
        with contextlib.suppress(OSError):
            sock.sendall(encode(failed))
        return 1


def _run(sock: socket.socket) -> None:
    messages = _messages(sock)
    join = next(messages, None)
    if join is None:
        return  # rank 0 has ended, or closed the group
    if not isinstance(join, JoinGroup):
        raise WireError("the first message must be JoinGroup")
    notes: list[tuple[int, str]] = []
    start = _start(join, notes)
    began = time.monotonic()
    executor = start.restored()
    try:
        sock.sendall(encode(Looked(executor is None)))
        measured = next(messages, None)
        if measured is None:
            return
        if not isinstance(measured, Measured):
            raise WireError("the second message must be Measured")
        if executor is None:
            executor = start.packed(measured.arrays(), began)
        os.close(join.segment)  # a mapping needs none
        sock.sendall(encode(Loaded(notes)))
        gc.collect()
        gc.freeze()
        _serve(executor, messages)
    finally:
        if executor is not None:
            executor.close()
        gc.unfreeze()


def _messages(sock: socket.socket) -> Iterator[ToRank]:
    """What rank 0 sends, until it closes its end."""
    reader: FrameReader[ToRank] = FrameReader(ToRank, MAX_FRAME_BYTES)
    while received := reader.receive(sock):
        yield from received


def _start(join: JoinGroup, notes: list[tuple[int, str]]) -> Start:
    """Plan the rank's part of the model, and take its seat among the ranks; ``notes`` gets what is
    noted as it starts. Raises ConfigError where it would be another model than that of rank 0."""
    with uncollected():
        from penstock.engine.loader import hardware_of_rank, open_model, plan_engine
        from penstock.engine.ranks.columns import SocketRank
        from penstock.engine.ranks.identity import RankIdentity
        from penstock.engine.start import Start
        from penstock.interface.collective import RankSeat

    files = open_model(join.asked)
    hardware = hardware_of_rank(join.resolved)
    made = plan_engine(join.asked, files, as_built=False, hardware=hardware, taps=join.taps)
    if join.stage is not None:
        made = made.of_stage(join.stage, join.resolved.threads, join.resolved.cpus)
    made = made.resolved_as(join.resolved)
    differences = RankIdentity.of(made, files, join.rank).differences(join.identity)
    if differences:
        raise ConfigError(
            f"it has another model than rank 0, since {' and '.join(differences)} differ; start "
            "the engine again"
        )
    world = join.resolved.tensor_parallel
    collective = SocketRank(join.rank, world, [socket.socket(fileno=join.columns)])
    seat = RankSeat(collective, join.segment, join.slot_bytes, join.threads)

    def note(level: int, text: str) -> None:
        notes.append((level, text))

    return Start(made, files, lambda phase: None, note, join.keeping, seat=seat)


def _serve(executor: Executor, messages: Iterator[ToRank]) -> None:
    from penstock.engine.ranks.steps import StepFrame, decoded

    for message in messages:
        if not isinstance(message, StepFrame):
            raise WireError(f"a {type(message).__name__} message came out of turn")
        executor.submit(decoded(message)).wait()


if __name__ == "__main__":
    sys.exit(main())
