"""Composes every step from scratch out of all live sequences, by one rule.

A sequence has ``num_tokens`` known and ``num_computed`` in the cache, and a step advances the
second toward the first. Decode, chunked prefill, prefix hits and preemption differ in the numbers
only. The loop around it, ``step_input`` being the step's arrays (``interface/step.py``)::

    leader = make_sequences(request, seed, eos_token_ids)
    scheduler.add(leader)
    while (step := scheduler.schedule()) is not None:
        sampling = Sampling(step.sample_rows, step.sampling_states)
        pending = executor.submit(step_input, sampling)
        tokens = [[token] for token in pending.wait().sampled.token_ids]
        for update in scheduler.update(step, tokens):
            ...  # a sequence got update.token_ids; finish_reason says whether that was all

Tenants (penstock.scheduler.fair_shares) take turns where there are several, and their users: those
that wait are let in, and prompts are computed, in the order of what each was served, within a
priority. When a sequence of a tenant below its share of sequences, or of blocks, does not fit, the
newest sequence of the tenant furthest above its own gives way, once in some steps.

Order within a step: running sequences that need one token (decode), running ones that need more
(chunked prefill), then the waiting, first come first served within their priority, without
overtaking. A token therefore waits for no prefill but the part that fits the step's budget. A
sequence that is pooled (embedded) samples nothing: it ends with its prompt.

Where the executor can, a step is submitted behind one that is in flight: ``submitted(step)`` says
so, ``schedule`` goes on from there, and ``update`` comes one step later. The rule is the same, with
placeholder tokens (scheduler/sequence.py) counted as known. A sequence that reaches its length with
one, or cannot sample before it is known, is left out of the step; another end wastes a row, whose
token is dropped. Blocks change hands while steps in flight use them: steps run in order.

Where no token is known ahead (the stages of a pipeline), several steps are in flight, and each
sequence that decodes is in one of them at a time. So that all have work, a step takes its share of
the running sequences that decode, of the prompts that are to be computed, and of the tokens that a
step may have.

A sequence whose next mask is not there (``awaits_mask``) is computed up to its last known token,
which is left for later; one whose mask did not come while its step ran (``update``, ``late``) has
that token computed again. While all running ones wait so, there is work and no step.

Drafts of what follows a sequence's known tokens (penstock.speculate) take what is then left of
the budget and of the free blocks; nothing is preempted for them, and what does not fit is dropped.
They are computed behind the last known token. ``update`` brings as many tokens as were drawn in
their place, and ``num_computed`` advances over those that were drafted. Keys and values of rejected
drafts lie beyond it: the next step overwrites them, and they are never published. Those of a path
through a tree are moved to the slots of their positions by the next step before it does anything
else, whichever sequence owns these by then.

The sequences of a beam search go on together (scheduler/beams.py): a step brings none of them a
token, and :meth:`Scheduler.go_on` does, when all have been computed.

When blocks run out, the last running sequence in that order of priority and arrival loses its
blocks and waits, output kept, at its old place; what it computed may still be found as cached
prefix. A sequence takes blocks only from those behind it that are not in the step yet; otherwise
it makes do with the slots there are, if any, and leaves none by which another could be admitted.
The first in order can take from all that are not in the step: so every step advances somebody,
those in its way end, and every request gets its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.errors import RequestError
from penstock.interface.messages import EngineStats, FinishReason, SequenceUpdate
from penstock.length_limits import LengthLimits
from penstock.sampling.params import SamplingParams
from penstock.scheduler.accepted_drafts import AcceptedDrafts
from penstock.scheduler.admission import Admission, Gate
from penstock.scheduler.beams import BeamPlaces
from penstock.scheduler.continuation import Continuation
from penstock.scheduler.draft import Draft
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.limits import check_beams, check_step_limits, most_tokens
from penstock.scheduler.output import ScheduledSequence, ScheduledStep, step_of
from penstock.scheduler.place_drafts import place_drafts
from penstock.scheduler.preemption import Preemption
from penstock.scheduler.queues import Queues
from penstock.scheduler.reservation import Reservation
from penstock.scheduler.residents import Residents
from penstock.scheduler.sequence import SequenceState, Status
from penstock.scheduler.steady import SteadySteps
from penstock.scheduler.step_budget import StepBudget
from penstock.scheduler.step_results import StepResults
from penstock.scheduler.step_states import step_states
from penstock.scheduler.updates import sequence_update

LEAST_CHUNK = 64
"""Tokens of prompts below which a step is not divided further: products of fewer rows take hardly
less time."""

_RUNNING = Status.RUNNING  # a name is cheaper than an enum's member


class Scheduler:
    """Owns all live sequences and, through ``cache``, their blocks. Not thread-safe."""

    def __init__(
        self,
        cache: KvCache,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        lengths: LengthLimits,
        all_hidden: bool = False,
        max_prompt_rows: int | None = None,
        surely: bool = False,
        batches: int = 1,
        depth: int = 2,
        adapter_slots: int = 0,
        draft_rows: int = 0,
        gate: Gate | None = None,
    ) -> None:
        """``all_hidden``: the hidden states of every token are wanted. ``max_prompt_rows``: tokens
        of a step that may get logits because their prompts want them; those that want more take
        more steps. None: all. ``surely``: no more sequences run than the cache holds to their
        ends. ``batches``: among how many steps the running sequences are divided, where several are
        in flight. ``depth``: how many may be. ``adapter_slots``: how many adapters may run at
        once; there are any with one step in flight at a time alone. ``draft_rows``: tokens of
        drafts that a step may have beyond those that there is room for among
        ``max_prompt_rows``. ``gate``: what may bring blocks of waiting sequences; those that it
        holds back are :meth:`put_back`."""
        check_step_limits(max_num_seqs, max_num_batched_tokens)
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self._batches = batches
        self._step_tokens = -(-max_num_batched_tokens // batches)
        self._lengths = lengths
        self._queues = Queues()
        self.running = self._queues.running
        self._in_flight = InFlight(depth)
        self._most_prompt_rows = max_prompt_rows or max_num_batched_tokens
        self._draft_rows = draft_rows
        self._accepted = AcceptedDrafts(cache)
        self._preemption = Preemption(cache, self._queues, self._in_flight)
        reservation = Reservation(cache, max_num_batched_tokens) if surely else None
        self._residents = Residents(adapter_slots)
        self._admission = Admission(
            cache,
            self._queues,
            self._in_flight,
            max_num_seqs,
            all_hidden,
            reservation,
            self._residents,
            gate,
        )
        self._continuation = Continuation(
            cache, self._queues, self._admission, self._preemption, self._in_flight, all_hidden
        )
        self._results = StepResults(
            cache, self._queues, self._in_flight, self._accepted, max_num_seqs, self._finish
        )
        self._beams = BeamPlaces(
            cache, self._queues, self._in_flight, self._preemption, max_num_seqs
        )
        self._steady = SteadySteps(cache, self.running, self._finish)
        self._arrivals = 0
        self._steps = 0
        self._tokens_computed = 0
        self._tokens_decoded = 0
        self._tokens_drafted = 0

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._queues.num_waiting)

    @property
    def waiting(self) -> list[SequenceState]:
        """The waiting sequences, by priority and arrival."""
        return self._queues.waiting

    @property
    def num_waiting(self) -> int:
        return self._queues.num_waiting

    @property
    def tokens_computed(self) -> int:
        """Token positions that all steps so far have computed."""
        return self._tokens_computed

    def add(self, leader: SequenceState) -> None:
        """Queue a request, given by its first sequence.

        Raises RequestError if it is a duplicate, empty, longer than the context, or could not
        finish even with the whole cache to itself.
        """
        answer = leader.params if leader.pooling is None else None
        total = self.check(leader.num_prompt_tokens, answer)
        if leader.request_id in self._queues.requests:
            raise RequestError(f"request id {leader.request_id!r} is in use", "request_id")
        self._arrivals += 1
        sequences = [leader, *leader.siblings]
        for sequence in sequences:
            sequence.arrival = self._arrivals
            sequence.max_total_tokens = total
            # The last token of an answer is never fed back.
            sequence.most_blocks = self.cache.blocks_for(total - (answer is not None))
        self._queues.add(sequences)

    def put_back(self, sequence: SequenceState) -> None:
        """Let a sequence that was set aside wait at its old place."""
        if sequence.status is Status.PENDING:
            self._queues.wait(sequence)

    def holds(self, request_id: str) -> bool:
        return request_id in self._queues.requests

    def check(self, prompt: int, params: SamplingParams | None) -> int:
        """Return the maximum number of tokens that a request can have, prompt and output.

        ``params`` is None for a request without output. Raises RequestError.
        """
        total = most_tokens(prompt, params, self._lengths, self.cache)
        if params is not None and params.beam_search is not None:
            check_beams(prompt, total, params.beam_search.width, self.cache, self.max_num_seqs)
        return total

    def abort(self, request_id: str, index: int | None = None) -> list[SequenceState]:
        """End a request, or one sequence of it, whatever it is doing; return what was ended.

        While it is in flight too: the step runs on, and its tokens for these sequences are
        ignored. Unknown ids and ended sequences are ignored. One sequence alone can
        only be ended once it has output: before, it shares the others' prefill (ValueError).
        """
        sequences = self._queues.requests.get(request_id, [])
        ended = [s for s in sequences if index is None or s.index == index]
        if index is not None and any(s.num_output_tokens == 0 for s in ended):
            raise ValueError(f"sequence {index} of {request_id!r} has no output yet")
        for sequence in ended:
            sequence.finish_reason = FinishReason.ABORT
            sequence.drop_placeholders()
            self._finish(sequence)
        return ended

    def schedule(
        self, drafts: Mapping[SequenceState, Draft] | None = None, masks_pending: bool = True
    ) -> ScheduledStep | None:
        """Compose the next step, or None if there is nothing to do.

        ``masks_pending``: some sequence may await its mask; it is then looked for.
        ``drafts``: of running sequences that have one token left to compute.
        """
        shares = self._queues.shares
        if self._queues.num_waiting and shares.several_tenants:
            victim = self._admission.victim()
            if victim is not None:
                self._preemption.preempt(victim)
        chosen: list[ScheduledSequence] = []
        copies: list[BlockCopy] = []
        most = -(-len(self.running) // self._batches)
        prefills = self._continuation.decodes(chosen, copies, masks_pending, most)
        decoded = len(chosen)
        budget = self._step_tokens - decoded
        if self._batches > 1:
            budget = min(budget, self._share_of_prompts(prefills))
        left = StepBudget(budget, self._most_prompt_rows)
        if prefills:
            self._continuation.prefills(prefills, left, chosen, copies)
        # If someone above came short, no block is left that would let anyone in.
        if self._queues.num_waiting:
            self._admission.admit(left, chosen)
        if not chosen:
            return self.schedule(drafts, masks_pending) if self._beams.give_way() else None
        drafted = 0
        if drafts and left.tokens:
            room = min(left.tokens, left.prompt_rows + self._draft_rows)
            drafted = place_drafts(self.cache, chosen, drafts, room, copies)
        self._steps += 1
        num_tokens = decoded + budget - left.tokens + drafted
        if not shares.contended:
            shares.uncharged += num_tokens
        moves, self._accepted.moves = self._accepted.moves, []
        states = step_states(self.cache, chosen)
        loads = self._residents.take_loads()
        return step_of(chosen, copies, moves, num_tokens, drafted, decoded, states, loads)

    def steady_steps(self, limit: int) -> int:
        """Return how many of the next ``limit`` steps only decode one token of each running
        sequence, up to the first that ends one, while none is added. Maybe fewer, and 0 where it is
        not known."""
        full = len(self.running) >= self.max_num_seqs
        if self._in_flight.steps or self._queues.shares.contended:
            return 0
        if self._queues.num_waiting and not full:
            return 0
        return self._steady.most(limit)

    def decode_steadily(self, steps: int, token: int) -> list[SequenceState]:
        """Do what so many rounds of ``schedule`` and ``update`` would, at most those of
        :meth:`steady_steps`, in each of which every sequence samples ``token``; without their
        updates. Returns the sequences that end with the last."""
        count = len(self.running) * steps
        self._queues.shares.uncharged += count
        ended = self._steady.take(steps, token)
        self._steps += steps
        self._tokens_computed += count
        self._tokens_decoded += count
        self._results.tokens_generated += count
        return ended

    def submitted(self, step: ScheduledStep) -> None:
        """The step is in flight, and the next one is scheduled before this one's ``update``.

        Advances and forks as ``update`` does, which then publishes and brings the tokens.
        """
        self._in_flight.submit(step, self.cache)
        for each in step.sequences:
            if len(each.samples) > 1:
                self._results.fork(each.sequence)

    def update(
        self,
        step: ScheduledStep,
        sampled: Sequence[list[int]],
        late: frozenset[int] = frozenset(),
    ) -> list[SequenceUpdate]:
        """Take in an executed step; ``sampled[i]`` are the new tokens of ``step.samples[i]``.

        Samples that are ``late`` could not draw: their last position is computed again later.
        All but the last of several are drafts that were accepted. Advances, publishes full blocks,
        forks, and frees what ended. Returns what each sequence got, without log-probabilities;
        those that ended since ``schedule`` get nothing.
        """
        if len(sampled) != len(step.samples):
            raise ValueError(f"{len(sampled)} samples for {len(step.samples)} sampling sequences")
        self._tokens_computed += step.num_tokens
        self._tokens_decoded += step.num_decoded
        self._tokens_drafted += step.num_drafted
        return self._results.take_in(step, sampled, late)

    def go_on(
        self, sequences: Sequence[SequenceState], parents: Sequence[int], tokens: Sequence[int]
    ) -> list[SequenceState]:
        """Give beams their next tokens: see :meth:`BeamPlaces.go_on`."""
        self._results.tokens_generated += len(tokens)
        return self._beams.go_on(sequences, parents, tokens)

    def in_flight(self, sequence: SequenceState) -> bool:
        """Whether a step in flight computes or samples the sequence."""
        return self._in_flight.involves(sequence)

    def conclude(self, sequence: SequenceState) -> SequenceUpdate:
        """End a live sequence whose last token turns out to have ended it."""
        sequence.conclude()
        self._finish(sequence)
        return sequence_update(sequence, [])

    def stats(self) -> EngineStats:
        allocated, filled = self.cache.slots()
        states_used, states_total = self.cache.num_states
        running, waiting = self._queues.adapters
        return EngineStats(
            running=len(self.running),
            waiting=self.num_waiting,
            kv_blocks_total=self.cache.num_blocks,
            kv_blocks_used=self.cache.num_used_blocks,
            kv_blocks_kept=self.cache.num_kept_blocks,
            prefix_queries=self._admission.prefix_queries,
            prefix_hits=self._admission.prefix_hits,
            preemptions=self._preemption.count,
            steps=self._steps,
            tokens_computed=self._tokens_computed,
            tokens_decoded=self._tokens_decoded,
            tokens_drafted=self._tokens_drafted,
            tokens_generated=self._results.tokens_generated,
            kv_slots_allocated=allocated,
            kv_slots_filled=filled,
            states_total=states_total,
            states_used=states_used,
            running_adapters=sorted(running),
            waiting_adapters=sorted(waiting),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless sequences, queues and the cache's books agree."""
        self.cache.check_integrity()
        self._queues.check_integrity()
        assert len(self.running) <= self.max_num_seqs
        self._residents.check_integrity(self.running)
        held = sum(s.table.num_held for s in self.running)
        assert held == self.cache.num_held_blocks, "a sequence that is not running holds blocks"
        requests = self._queues.requests.values()
        self._in_flight.check_integrity(s for sequences in requests for s in sequences)

    def _share_of_prompts(self, prefills: Sequence[SequenceState]) -> int:
        """Return the tokens of prompts that a step may have so that others have some, too: two
        steps for each that may be in flight share what is to be computed."""
        if self._queues.num_waiting > self.max_num_seqs:
            return self._step_tokens
        left = sum(len(s.token_ids) - s.num_computed for s in prefills)
        if self._queues.num_waiting:
            left += sum(len(s.token_ids) for s in self._queues.waiting)
        return max(LEAST_CHUNK, -(-left // (2 * self._batches)))

    def _finish(self, sequence: SequenceState) -> None:
        if sequence.status is _RUNNING:
            self.cache.free(sequence.table)
        self._queues.finish(sequence)
