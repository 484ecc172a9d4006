"""The live sequences: those that run, those that wait, and the requests they belong to."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from operator import attrgetter

from penstock.scheduler.fair_shares import FairShares, Rank
from penstock.scheduler.sequence import SequenceState, Status

_order = attrgetter("order")
_RUNNING, _WAITING = Status.RUNNING, Status.WAITING  # a name is cheaper than an enum's member

_Line = list[SequenceState]
Party = tuple[str, str]
"""A tenant and one of its users, who have a line of their own."""
Turn = tuple[int, Rank, tuple[int, int, int]]
"""The priority, the virtual times of tenant and user, and the order. The smaller goes first."""


class Queues:
    """Keeps ``SequenceState.status``, the lists and ``shares`` in step.

    Lists ascend in ``SequenceState.order``. Each user of each tenant has a list of its waiting
    sequences. Which list is next is decided by priority, then by their shares, then by that order.
    """

    def __init__(self) -> None:
        self.running: list[SequenceState] = []
        self.requests: dict[str, list[SequenceState]] = {}
        """The live sequences of each request; some may be in neither list (``PENDING``): those that
        wait for their request's first one, or were set aside."""
        self.shares = FairShares()
        self.num_waiting = 0
        self._lines: dict[Party, _Line] = {}

    @property
    def waiting(self) -> list[SequenceState]:
        """The waiting sequences of all tenants."""
        return sorted((s for line in self._lines.values() for s in line), key=_order)

    @property
    def adapters(self) -> tuple[set[str], set[str]]:
        """The digests of the adapters of running sequences, and of waiting ones."""
        waiting = (sequence for line in self._lines.values() for sequence in line)
        running, wanted = (
            {each.adapter.digest for each in some if each.adapter is not None}
            for some in (self.running, waiting)
        )
        return running, wanted

    def first(self) -> SequenceState:
        """The sequence that is admitted next; at least one must be waiting."""
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return line[0]
        return min((line[0] for line in self._lines.values()), key=self.turn)

    def first_behind(self, passed: Mapping[Party, int]) -> SequenceState | None:
        """The one that is admitted next where so many at the head of each line are passed over;
        None: there is no other."""
        heads = (
            line[passed.get(party, 0)]
            for party, line in self._lines.items()
            if passed.get(party, 0) < len(line)
        )
        return min(heads, key=self.turn, default=None)

    def turn(self, sequence: SequenceState) -> Turn:
        """The key by which tenants take turns. The smaller goes first."""
        return (sequence.priority, self.shares.rank(sequence.tenant), sequence.order)

    def add(self, sequences: list[SequenceState]) -> None:
        """Add a request, whose first sequence begins to wait."""
        self.requests[sequences[0].request_id] = sequences
        for sequence in sequences:
            self.shares.enter(sequence.tenant)
        self.wait(sequences[0])

    def run(self, sequence: SequenceState) -> None:
        """Move a sequence, which waits or is in no list yet, to the running ones."""
        if sequence.status is _WAITING:
            self._wait_no_more(sequence)
            self.shares.let_in(sequence.tenant)
        sequence.status = _RUNNING
        insort(self.running, sequence, key=_order)

    def wait(self, sequence: SequenceState) -> None:
        """Move a sequence, wherever it is, to the waiting ones, with nothing of it computed."""
        if sequence.status is _RUNNING:
            _remove(self.running, sequence)
        sequence.num_computed = 0
        sequence.status = _WAITING
        insort(self._lines.setdefault(party_of(sequence), []), sequence, key=_order)
        self.num_waiting += 1
        self.shares.wait(sequence.tenant)

    def set_aside(self, sequence: SequenceState) -> None:
        """Let a waiting sequence be passed over until it is to :meth:`wait` again, at its old
        place."""
        self._wait_no_more(sequence)
        sequence.status = Status.PENDING

    def finish(self, sequence: SequenceState) -> None:
        """Remove a sequence from everything, and its request with its last sequence."""
        if sequence.status is _RUNNING:
            _remove(self.running, sequence)
        elif sequence.status is _WAITING:
            self._wait_no_more(sequence)
        sequence.status = Status.FINISHED
        self.shares.leave(sequence.tenant)
        group = self.requests[sequence.request_id]
        if len(group) == 1:
            del self.requests[sequence.request_id]
        else:
            group.remove(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless lists, statuses, shares and requests agree."""
        lists: Iterable[tuple[_Line, Status]] = [
            (self.running, _RUNNING),
            *((line, _WAITING) for line in self._lines.values()),
        ]
        for queue, status in lists:
            assert all(s.status is status for s in queue), f"a {status.value} queue holds others"
            assert queue == sorted(queue, key=_order), "a queue is out of order"
        for party, line in self._lines.items():
            assert line, "an empty line is kept"
            assert all(party_of(s) == party for s in line), "a line holds those of others"
        waiting = self.waiting
        assert len(waiting) == self.num_waiting
        live = [s for group in self.requests.values() for s in group]
        queued = {*self.running, *waiting}
        assert queued == {s for s in live if s.status is not Status.PENDING}
        for sequence in live:
            assert sequence.status is _RUNNING or sequence.num_computed == 0
            self.shares.rank(sequence.tenant)
        self.shares.check_integrity()

    def _wait_no_more(self, sequence: SequenceState) -> None:
        party = party_of(sequence)
        line = self._lines[party]
        _remove(line, sequence)
        if not line:
            del self._lines[party]
        self.num_waiting -= 1
        self.shares.wait_no_more(sequence.tenant)


def party_of(sequence: SequenceState) -> Party:
    return (sequence.tenant.name, sequence.tenant.user)


def _remove(queue: list[SequenceState], sequence: SequenceState) -> None:
    del queue[bisect_left(queue, sequence.order, key=_order)]
