"""The processes of ranks 1 and up: started, told of steps, watched and ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from penstock.engine.exits import describe_compute_exit
from penstock.engine.ranks.columns import SocketRank
from penstock.engine.ranks.wire import (
    MAX_FRAME_BYTES,
    Failed,
    FromRank,
    JoinGroup,
    Loaded,
    Looked,
    ToRank,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.interface.collective import WAIT_S
from penstock.interface.rank_segment import RankSegment
from penstock.processes.frames import PIECE_BYTES, FrameReader, WireError, encode
from penstock.processes.spawn import spawn

START_TIMEOUT_S: Final = 1800.0
"""Seconds after which a start counts as hung, as that of an engine's process."""
_EXIT_GRACE_S: Final = 5.0
PATIENCE_S: Final = 5.0
"""Seconds in which the end of another rank becomes known after it has led to an error here."""
_LOOK_S: Final = 0.5
"""Seconds between looks whether an end that was asked for takes too long."""

MODULE: Final = "penstock.engine.ranks.child"


class RankProcesses:
    """The other ranks, as rank 0 sees them.

    A thread of its own starts the processes, since the system ends a process with the thread that
    started it, and reads what they send. The first that fails or ends gives the whole group up.
    """

    def __init__(
        self,
        segment: RankSegment,
        world: int,
        module: str = MODULE,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: os.environ,
    ) -> None:
        """``environment``: that of the process of a rank."""
        self.segment = segment
        self.world = world
        self._module = module
        self._environment = environment
        self._made_in = os.getpid()
        pairs = [socket.socketpair() for _ in range(1, world)]
        self.collective = SocketRank(0, world, [ours for ours, _ in pairs])
        self._theirs = [theirs for _, theirs in pairs]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._changed = threading.Condition()
        self._started = False
        self._looked: dict[int, bool] = {}
        """Whether each rank that has looked for an engine artifact packs its weights."""
        self._loaded: dict[int, list[tuple[int, str]]] = {}
        """Notes of each rank that is ready for steps."""
        self._failure: PenstockError | None = None
        self._closing_at: float | None = None
        self._due: float | None = None
        """When the group is given up, where a step runs whose end nothing else waits for in
        vain."""
        self._thread: threading.Thread | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Those of ranks 1, 2 and so on."""
        return tuple(process.pid for process in self._processes)

    def start(self, join: Callable[[int, int], JoinGroup]) -> None:
        """Start all processes; ``join`` makes the first message of a rank, of its number and the
        file descriptor of its socket for columns. Raises EngineDeadError."""
        joins = [join(rank, sock.fileno()) for rank, sock in enumerate(self._theirs, 1)]
        self._thread = threading.Thread(
            target=self._serve, args=(joins,), name="penstock-ranks", daemon=True
        )
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._started)
        self.check()

    def check(self) -> None:
        """Raise the error with which a rank has failed, if one has."""
        if self._failure is not None:
            raise self._failure

    def send(self, message: ToRank) -> None:
        """Send a message to every rank. Raises the error of a rank that has failed."""
        self.check()
        frame = encode(message, MAX_FRAME_BYTES)
        try:
            for sock in self._sockets:
                sock.sendall(frame)
        except OSError as error:
            raise self.failure(_EXIT_GRACE_S) or EngineDeadError(
                f"a rank takes in no more steps: {error}"
            ) from error

    def wait_looked(self) -> bool:
        """Return whether any rank packs its weights, once all know. Raises the error of one that
        failed."""
        self._wait_for_all(self._looked)
        return any(self._looked.values())

    def wait_loaded(self) -> list[tuple[int, int, str]]:
        """Return once every rank is ready for steps: notes, each with its rank and its level.
        Raises the error of one that failed."""
        self._wait_for_all(self._loaded)
        for sock in self._sockets:  # a step that a stopped process does not take in
            sock.settimeout(WAIT_S)
        notes = sorted(self._loaded.items())
        return [(rank, *note) for rank, its in notes for note in its]

    def _wait_for_all(self, told: Mapping[int, object]) -> None:
        others = self.world - 1
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or len(told) == others, START_TIMEOUT_S
            )
        self.check()
        if len(told) < others:
            raise EngineDeadError(f"the ranks were not ready within {START_TIMEOUT_S:.0f} seconds")

    def failure(self, patience: float) -> PenstockError | None:
        """Return the error with which a rank has failed, or does within so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, patience)
        return self._failure

    def fail(self, why: str) -> None:
        """Give the group up, because ranks are not at the same step any more. From any thread."""
        self._fail(EngineDeadError(why))

    def begin_step(self) -> None:
        """Have the group given up if :meth:`end_step` is not called in time: who waits for a device
        that waits for another rank does not notice how long."""
        self._due = time.monotonic() + WAIT_S

    def end_step(self) -> None:
        """Take back what :meth:`begin_step` has begun."""
        self._due = None

    def close(self) -> None:
        """End all processes, and wait for their end. Calls after the first do nothing, and neither
        do those in a fork, whose sockets and memory are those of the process that it is of."""
        if os.getpid() != self._made_in:
            return
        with self._changed:
            if self._closing_at is not None:
                return
            self._closing_at = time.monotonic()
        self._give_up()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        if self._thread is None:  # nothing was started
            for theirs in self._theirs:
                theirs.close()
        else:
            self._thread.join(3 * _EXIT_GRACE_S)
        self.collective.close()
        self.segment.close()

    # What the thread does.

    def _serve(self, joins: Sequence[JoinGroup]) -> None:
        try:
            self._spawn(joins)
            self._watch()
        except BaseException as error:  # nobody else would tell those who wait
            self.fail(f"the ranks cannot be watched: {error!r}")
            raise
        finally:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EXIT_GRACE_S if self._closing_at is None else 1.0)
                    continue
                process.kill()
                process.wait()
            for sock in self._sockets:
                sock.close()

    def _spawn(self, joins: Sequence[JoinGroup]) -> None:
        try:
            for rank, (join, theirs) in enumerate(zip(joins, self._theirs, strict=True), 1):
                process, sock = spawn(
                    self._module,
                    stdout=2,
                    environment=self._environment(rank),
                    pass_fds=(join.segment, theirs.fileno()),
                )
                self._processes.append(process)
                self._sockets.append(sock)
                with contextlib.suppress(BrokenPipeError):  # reading tells why
                    sock.sendall(encode(join, MAX_FRAME_BYTES))
        except OSError as error:
            self._fail(EngineDeadError(f"the process of a rank cannot be started: {error}"))
        finally:
            for theirs in self._theirs:
                theirs.close()
            with self._changed:
                self._started = True
                self._changed.notify_all()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, sock in enumerate(self._sockets, 1):
                reader: FrameReader[FromRank] = FrameReader(FromRank, MAX_FRAME_BYTES)
                selector.register(sock, selectors.EVENT_READ, (rank, reader))
            while selector.get_map():
                for key, _ in selector.select(_LOOK_S):
                    if not self._read(self._sockets[key.data[0] - 1], *key.data):
                        selector.unregister(key.fileobj)
                closing, due = self._closing_at, self._due
                if due is not None and time.monotonic() > due:
                    self._due = None
                    self.fail(f"the ranks have not done a step within {WAIT_S:.0f} seconds")
                if closing is not None and time.monotonic() - closing > _EXIT_GRACE_S:
                    return

    def _read(self, sock: socket.socket, rank: int, reader: FrameReader[FromRank]) -> bool:
        """Take in what a rank has sent; whether there may be more."""
        try:
            data = sock.recv(PIECE_BYTES)
            messages = reader.feed(data)
        except OSError:
            data, messages = b"", []
        except WireError as error:
            self._fail(error)
            return False
        for message in messages:
            match message:
                case Looked(packs):
                    with self._changed:
                        self._looked[rank] = packs
                        self._changed.notify_all()
                case Loaded(notes):
                    with self._changed:
                        self._loaded[rank] = notes
                        self._changed.notify_all()
                case Failed():
                    self._fail(message.error(f"rank {rank}"))
        if not data and self._closing_at is None:
            self._fail(self._end_of(rank))
        return bool(data)

    def _end_of(self, rank: int) -> EngineDeadError:
        process = self._processes[rank - 1]
        try:
            code = process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return EngineDeadError(f"rank {rank} (pid {process.pid}) has closed its socket")
        return EngineDeadError(
            f"the process of rank {rank} (pid {process.pid}) {describe_compute_exit(code)}"
        )

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()
        self._give_up()

    def _give_up(self) -> None:
        self.segment.give_up()
        self.collective.give_up()


@contextlib.contextmanager
def given_up_on_error(processes: RankProcesses) -> Iterator[None]:
    """Raise why another rank has failed in the place of what that leads to here. After any other
    error ranks may be at different steps, and the group is given up."""
    try:
        yield
    except BaseException as error:
        processes.end_step()
        patience = PATIENCE_S if isinstance(error, RuntimeError | PenstockError) else 0.0
        failure = processes.failure(patience)
        if failure is None:
            processes.fail(f"a step of several ranks was not done: {error!r}; start again")
            raise
        raise failure from error
