"""Converting a job's answer, or its end without one, into a result or an error."""

from __future__ import annotations

from penstock.errors import ContextLengthError, PenstockError, RequestError, UnavailableError
from penstock.sandbox.jobs import Answer, End, Exhausted, Failed, Job, Refused
from penstock.sandbox.process import WALL_S


def result(job: Job, answer: Answer) -> Answer:
    """Return the answer of a job. Raises RequestError if the job was refused or needed too much,
    and PenstockError for an internal error."""
    match answer:
        case Refused(message, param, too_long):
            raise (ContextLengthError if too_long else RequestError)(message, param)
        case Exhausted():
            raise job.died("memory")
        case Failed(trace):
            raise PenstockError(f"a worker process failed: {trace}")
    return answer


def failure(job: Job, end: End) -> PenstockError:
    """Return the error for a job without an answer: Exceeded if the job caused it, otherwise
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
