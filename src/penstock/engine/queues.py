"""Who is live: the sequences that run, those that wait, and the requests they belong to."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter

from penstock.engine.request import Sequence, Status

_order = attrgetter("order")
_RUNNING, _WAITING = Status.RUNNING, Status.WAITING  # a name is cheaper than an enum's member


class Queues:
    """Keeps ``Sequence.status`` and the lists in step; both lists ascend in ``Sequence.order``."""

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.requests: dict[str, list[Sequence]] = {}
        """The live sequences of each request; some may be in neither list (``PENDING``)."""

    def run(self, sequence: Sequence) -> None:
        """From the head of the waiting ones, or from nowhere, to the running ones."""
        if sequence.status is _WAITING:
            assert self.waiting[0] is sequence, "only the first may be admitted"
            del self.waiting[0]
        sequence.status = _RUNNING
        insort(self.running, sequence, key=_order)

    def wait(self, sequence: Sequence) -> None:
        """From wherever it is to its place among the waiting ones, nothing of it computed."""
        if sequence.status is _RUNNING:
            self._remove(self.running, sequence)
        sequence.num_computed = 0
        sequence.status = _WAITING
        insort(self.waiting, sequence, key=_order)

    def finish(self, sequence: Sequence) -> None:
        """Out of everything; with its last sequence goes the request."""
        if sequence.status is _RUNNING:
            self._remove(self.running, sequence)
        elif sequence.status is _WAITING:
            self._remove(self.waiting, sequence)
        sequence.status = Status.FINISHED
        group = self.requests[sequence.request_id]
        if len(group) == 1:
            del self.requests[sequence.request_id]
        else:
            group.remove(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless lists, statuses and requests agree."""
        for queue, status in ((self.running, _RUNNING), (self.waiting, _WAITING)):
            assert all(s.status is status for s in queue), f"a {status.value} queue holds others"
            assert queue == sorted(queue, key=_order), "a queue is out of order"
        live = [s for group in self.requests.values() for s in group]
        queued = {*self.running, *self.waiting}
        assert queued == {s for s in live if s.status is not Status.PENDING}
        for sequence in live:
            assert sequence.status is _RUNNING or sequence.num_computed == 0

    def _remove(self, queue: list[Sequence], sequence: Sequence) -> None:
        del queue[bisect_left(queue, sequence.order, key=_order)]
