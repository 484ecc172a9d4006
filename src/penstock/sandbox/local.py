"""A worker for one blocking caller."""

from __future__ import annotations

import time

from penstock.sandbox import wire
from penstock.sandbox.jobs import Answer, Job
from penstock.sandbox.process import WALL_S, WorkerDied, WorkerProcess
from penstock.sandbox.results import result


class LocalWorker:
    """Does one job at a time, in a process that is started for the first and replaced when it
    dies. Not thread-safe.
    """

    def __init__(self) -> None:
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
        """End the process; safe to repeat."""
        process, self._process = self._process, None
        if process is not None:
            process.socket.close()
            process.kill()
            process.wait()

    def _ask(self, frame: bytes) -> Answer:
        if self._process is not None and self._process.has_ended:
            self.close()  # with the thread that had started it, mostly; not of this job
        if self._process is None:
            self._process = WorkerProcess.spawn()
        process, done = self._process, False
        frames: wire.FrameBuffer[Answer] = wire.FrameBuffer(Answer)
        ends = time.monotonic() + WALL_S
        try:
            process.socket.settimeout(WALL_S)
            process.socket.sendall(frame)
            while data := process.socket.recv(1 << 20):
                answer = frames.feed(data)
                if answer is not None:
                    done = True
                    return answer
                process.socket.settimeout(max(ends - time.monotonic(), 0.001))
        except TimeoutError:
            process.kill(late=True)
        except OSError:
            pass  # it has died, which its exit tells more of
        finally:
            if not done:
                process.wait() if not process.late else None
                self.close()
        raise WorkerDied(process.cause())
