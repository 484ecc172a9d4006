"""Computes the grammar masks of sequences while steps run, without delaying a step for long."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.errors import first_line
from penstock.grammar.threads import SLOW_NICE, Bell, Workers
from penstock.interface.mask import StepMasks, TokenMask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.grammar.consume import Consumer
    from penstock.grammar.matcher import Matcher
    from penstock.scheduler.sequence import SequenceState

_log = logging.getLogger(__name__)

_CPUS_PER_THREAD = 8
_MOST_THREADS = 4
"""The bounds on the threads of each kind."""


class MaskJob:
    """The computation of the mask of a sequence's next token."""

    __slots__ = ("done", "matcher", "sequence")

    def __init__(self, sequence: SequenceState, matcher: Matcher) -> None:
        self.sequence = sequence
        self.matcher = matcher
        self.done = False

    def run(self, consumer: Callable[[], Consumer] | None = None) -> None:
        """Compute the mask. Never raises: whatever goes wrong ends this request alone.

        ``consumer`` gives the function by which the matcher takes its tokens; None is the default
        of ``Matcher.compute``.
        """
        try:
            if consumer is None:
                self.matcher.compute()
            else:
                self.matcher.compute(consumer())
        except BaseException as error:  # nothing else reports it in this thread
            _log.exception("a mask could not be computed")
            self.matcher.fail(f"its mask could not be computed: {first_line(error)}")
        self.done = True


class MaskThreads(Protocol):
    """Threads that compute masks: :class:`Pools`, or a double in tests."""

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        """Begin to compute these masks; the time of each is charged to its tenant."""
        ...

    def wait(self, jobs: Sequence[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        """Return when one of the jobs is done (or all of them), or after so many seconds."""
        ...

    def close(self) -> None: ...


class Pools:
    """Two pools of threads: one for quick masks, and one of low priority for grammars whose masks
    were slow."""

    def __init__(self, bell: Bell) -> None:
        count = min(max((os.cpu_count() or 1) // _CPUS_PER_THREAD, 1), _MOST_THREADS)
        from penstock.grammar.consume import Consumers  # it loads llguidance

        self._bell = bell
        self._consumers = Consumers()
        self._quick = Workers("penstock-masks", count, bell=bell)
        self._slow = Workers("penstock-slow-masks", count, nice=SLOW_NICE, bell=bell)

    def begin(self, jobs: Iterable[tuple[str, MaskJob]]) -> None:
        quick: list[tuple[str, Callable[[], None]]] = []
        slow: list[tuple[str, Callable[[], None]]] = []
        for owner, job in jobs:
            if job.matcher.slow:
                consumer = partial(self._consumers.of_thread, job.matcher.tokenizer)
                slow.append((owner, partial(job.run, consumer)))
            else:
                quick.append((owner, job.run))
        if quick:
            self._quick.submit(quick)
        if slow:
            self._slow.submit(slow)

    def wait(self, jobs: Sequence[MaskJob], seconds: float, *, all_of_them: bool) -> None:
        found = all if all_of_them else any
        self._bell.wait(lambda: found(job.done for job in jobs), seconds)

    def close(self) -> None:
        self._quick.close()
        self._slow.close()


class Masks:
    """The masks that are being computed, and the sequences that await them. Not thread-safe.

    A mask is begun when the last token is known, and joined when the logits are computed. If it is
    late by more than the step's patience, its sequence gets no token in this step: the scheduler
    computes the sequence's last position again once the mask is done
    (``SequenceState.awaits_mask``). That gives the same bits, so a late mask delays tokens and
    changes none. A sequence whose last masks were slow is not scheduled before its next one is
    done.
    """

    def __init__(self, threads: MaskThreads) -> None:
        self._threads = threads
        self._begun: dict[Matcher, MaskJob] = {}
        self._awaiting: dict[SequenceState, MaskJob] = {}

    @property
    def num_awaiting(self) -> int:
        """The number of sequences that are not scheduled before their mask is done."""
        return len(self._awaiting)

    def begin(self, sequences: Iterable[SequenceState]) -> None:
        """Begin the masks of these sequences, except those that have ended."""
        jobs = []
        for sequence in sequences:
            matcher = sequence.matcher
            if (
                matcher is None
                or sequence.finish_reason is not None
                or matcher.known
                or matcher in self._begun
            ):
                continue
            job = self._begun[matcher] = MaskJob(sequence, matcher)
            jobs.append((sequence.tenant.name, job))
            if matcher.slow:
                self._await(sequence, job)
        if jobs:
            self._threads.begin(jobs)

    def join(self, sequences: Sequence[SequenceState], seconds: float) -> StepMasks:
        """Wait for the masks of the sequences' next tokens, for so many seconds at most.

        The mask of a first token is known since its grammar was compiled.
        """
        if self._begun:
            begun = (self._begun.get(s.matcher) for s in sequences if s.matcher is not None)
            self._wait_for((job for job in begun if job is not None), seconds)
        masks: list[TokenMask | None] = []
        late: list[int] = []
        for i, sequence in enumerate(sequences):
            matcher = sequence.matcher
            if matcher is None:
                masks.append(None)
                continue
            job = self._begun.get(matcher)
            if job is not None and not job.done:
                self._await(sequence, job)
                late.append(i)
                masks.append(None)
                continue
            masks.append(self._ended(matcher).mask)
        if len(self._begun) > 2 * len(sequences):  # some are of sequences that were stopped
            self._begun = {m: job for m, job in self._begun.items() if not job.done}
        return StepMasks(masks, frozenset(late))

    def wait_for_all(self, seconds: float) -> None:
        """Wait for the masks that were begun, for so many seconds at most.

        Sequences whose masks are late are not scheduled before these are done. Call it before a
        step that must have its masks when it is submitted.
        """
        for job in self._wait_for(self._begun.values(), seconds):
            if not job.done:
                self._await(job.sequence, job)

    def release(self) -> list[SequenceState]:
        """Let the sequences go on whose masks are done. Returns those of them that have ended
        instead: their text is complete, or has its greatest length."""
        ended = []
        for sequence, job in list(self._awaiting.items()):
            if not job.done and sequence.finish_reason is None:
                continue
            del self._awaiting[sequence]
            sequence.awaits_mask = False
            if sequence.finish_reason is None and (
                job.matcher.complete or len(sequence.token_ids) >= sequence.max_total_tokens
            ):
                self._ended(job.matcher)
                ended.append(sequence)
        return ended

    def wait(self, seconds: float) -> None:
        """Wait for a mask that a sequence awaits, for so many seconds at most."""
        if self._awaiting:
            self._threads.wait(list(self._awaiting.values()), seconds, all_of_them=False)

    def close(self) -> None:
        self._threads.close()

    def _wait_for(self, jobs: Iterable[MaskJob], seconds: float) -> list[MaskJob]:
        """Wait for the jobs not yet marked late (``awaits_mask``); returns them."""
        pending = [
            job
            for job in jobs
            if not (job.done or job.sequence.awaits_mask or job.sequence.finish_reason)
        ]
        if pending:
            self._threads.wait(pending, seconds, all_of_them=True)
        return pending

    def _ended(self, matcher: Matcher) -> Matcher:
        self._begun.pop(matcher, None)
        return matcher

    def _await(self, sequence: SequenceState, job: MaskJob) -> None:
        sequence.awaits_mask = True
        self._awaiting[sequence] = job
