"""What an answer means to whoever has asked."""

from __future__ import annotations

from penstock.errors import PenstockError, RequestError
from penstock.sandbox.jobs import Answer, Exhausted, Failed, Job, Refused


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
