"""A worker for one blocking caller."""

from __future__ import annotations

import socket
import time

from penstock.sandbox import wire
from penstock.sandbox.jobs import Answer, Died, Job, Started, Told
from penstock.sandbox.process import WALL_S, ForkServer, WorkerDied, WorkerProcess
from penstock.sandbox.results import result


class LocalWorker:
    """Does one job at a time, in a process that is started for the first and replaced when it
    dies. Not thread-safe.
    """

    def __init__(self) -> None:
        self._server = ForkServer()
        self._socket: socket.socket | None = None
        self._frames: wire.FrameBuffer[Told] = wire.FrameBuffer(Told)
        self._process: WorkerProcess | None = None

    def run(self, job: Job) -> Answer:
        """The job's answer. Raises RequestError if it refuses, or exceeds a limit of workers."""
        frame = wire.encode_job(job)
        try:
            answer = self._ask(frame)
        except WorkerDied as death:
            raise job.died(death.cause) from None
        return result(job, answer)

    def close(self) -> None:
        """End the processes; safe to repeat."""
        self._drop()
        self._server.close()

    def _ask(self, frame: bytes) -> Answer:
        if self._server.has_ended:
            self.close()  # with the thread that had started it, mostly; not of this job
        if self._socket is None:
            self._socket, self._frames = self._server.fork(), wire.FrameBuffer(Told)
        done = False
        ends = time.monotonic() + WALL_S
        try:
            self._socket.settimeout(WALL_S)
            self._socket.sendall(frame)  # read once it has started
            while messages := self._frames.receive(self._socket):
                for message in messages:
                    match message:
                        case Started(pid):
                            self._process = WorkerProcess(pid)
                        case Died(cause):
                            raise WorkerDied(cause)
                        case _:
                            done = True
                            return message
                self._socket.settimeout(max(ends - time.monotonic(), 0.001))
        except TimeoutError:
            raise WorkerDied("time") from None
        except OSError:
            pass
        finally:
            if not done:
                self._drop()
        raise WorkerDied("crash")

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.release()
            self._process = None
