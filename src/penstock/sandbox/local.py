"""A worker for one blocking caller."""

from __future__ import annotations

import os
import socket
import time

from penstock.errors import UnavailableError
from penstock.processes.frames import FrameReader, WireError
from penstock.sandbox.jobs import Answer, Died, FromWorker, Job, Started, encode_job
from penstock.sandbox.process import START_S, WALL_S, ForkServer, WorkerDied, WorkerProcess
from penstock.sandbox.results import failure, result


class LocalWorker:
    """Does one job at a time, in a process that is started for the first and replaced when it
    dies. Any thread may use it, one at a time.

    It belongs to the process that made it: in one that was forked from that, closing does nothing.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._server = ForkServer()
        self._socket: socket.socket | None = None
        self._frames: FrameReader[FromWorker] = FrameReader(FromWorker)
        self._process: WorkerProcess | None = None

    @property
    def is_own(self) -> bool:
        """Whether the current process is the one that it belongs to."""
        return os.getpid() == self._owner

    def run(self, job: Job) -> Answer:
        """Run a job and return its answer.

        Raises RequestError if it refuses or exceeds a limit of workers, and UnavailableError if two
        workers in turn are lost.
        """
        if not self.is_own:
            raise UnavailableError(
                "this process was forked from the one that has the worker process; make what "
                "needs one here"
            )
        frame = encode_job(job)
        try:
            try:
                answer = self._ask(frame)
            except WorkerDied as death:
                if death.end != "lost":
                    raise
                answer = self._ask(frame)
        except WorkerDied as death:
            raise failure(job, death.end) from None
        return result(job, answer)

    def close(self) -> None:
        """End the processes; safe to repeat."""
        if self.is_own:
            self._drop()
            self._server.close()

    def _ask(self, frame: bytes) -> Answer:
        done = False
        try:
            sock = self._connected()
            ends = time.monotonic() + WALL_S
            sock.settimeout(WALL_S)
            sock.sendall(frame)
            while messages := self._frames.receive(sock):
                for message in messages:
                    match message:
                        case Died(cause):
                            raise WorkerDied(cause)
                        case Started():
                            pass
                        case _:
                            done = True
                            return message
                sock.settimeout(max(ends - time.monotonic(), 0.001))
        except TimeoutError:
            raise WorkerDied("late") from None
        except (OSError, WireError):
            pass
        finally:
            if not done:
                self._drop()
        raise WorkerDied("lost")

    def _connected(self) -> socket.socket:
        """Return the socket of a running worker, starting one if necessary."""
        if self._server.has_ended:
            self.close()
        if self._socket is None:
            self._socket, self._frames = self._server.fork(), FrameReader(FromWorker)
            self._socket.settimeout(START_S)
            try:
                first = self._frames.receive(self._socket)
            except TimeoutError:
                self.close()
                raise UnavailableError(
                    f"a worker process did not start within {START_S:g} s; the machine is "
                    "overloaded: try again later"
                ) from None
            match first:
                case [Started(pid), *_]:
                    self._process = WorkerProcess(pid)
                case _:
                    raise WorkerDied("lost")
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.release()
            self._process = None
