"""What an answer, or the lack of one, means to whoever has asked."""

from __future__ import annotations

from penstock.errors import PenstockError, RequestError, UnavailableError
from penstock.sandbox.jobs import Answer, End, Exhausted, Failed, Job, Refused
from penstock.sandbox.process import WALL_S


def result(job: Job, answer: Answer) -> Answer:
    """The answer, if it is one. Raises RequestError if the job was refused or was too much, and
    PenstockError for a defect."""
    match answer:
        case Refused(message, param):
            raise RequestError(message, param)
        case Exhausted():
            raise job.died("memory")
        case Failed(trace):
            raise PenstockError(f"a worker process failed: {trace}")
    return answer


def failure(job: Job, end: End) -> PenstockError:
    """The error of a job that has no answer: Exceeded if that is its own doing, otherwise
    UnavailableError."""
    match end:
        case "late":
            return UnavailableError(
                f"a worker process did not end its job within {WALL_S:g} s; the machine is "
                "overloaded: send the request again later"
            )
        case "lost":
            return UnavailableError(
                "a worker process was ended before its job was done, and so was the next one; "
                "send the request again later"
            )
    return job.died(end)
