"""The requests of an engine that search with beams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.errors import RequestError
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import FinishReason, SequenceUpdate
from penstock.models.spec import ModelSpec
from penstock.sampling.beam_search import Beam, Beams
from penstock.sampling.params import SamplingParams
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState


def check_search(
    params: SamplingParams, spec: ModelSpec, most_logprobs: int | None, drafts_follow: bool
) -> None:
    """Raise RequestError if an engine cannot search for these outputs: its sampler reports at most
    ``most_logprobs`` of a row's likeliest tokens (None: all), and ``drafts_follow`` every token of
    a sequence, or they do not."""
    search = params.beam_search
    assert search is not None
    endings = len(params.stop_token_ids)
    if not params.ignore_eos:
        endings += len(spec.eos_token_ids)
    looks, width = search.candidates(endings), search.width
    if looks > spec.vocab_size:
        raise RequestError(
            f"a beam search of width {width} looks at {looks} tokens of a vocabulary of "
            f"{spec.vocab_size}; lower the width",
            "beam_width",
        )
    if most_logprobs is not None and looks > most_logprobs:
        raise RequestError(
            f"a beam search of width {width} looks at the {looks} likeliest tokens, and "
            f"{most_logprobs} can be had on this device; lower the width, or give fewer "
            "stop_token_ids",
            "beam_width",
        )
    if drafts_follow:
        raise RequestError(
            "a beam search cannot go with heads that draft from hidden states; start the engine "
            "without --speculative for it",
            "beam_width",
        )


def beam_sampling(params: SamplingParams, num_ending: int, vocab_size: int) -> SamplingParams:
    """What the sampler is asked for of each beam: its likeliest tokens."""
    assert params.beam_search is not None
    wanted = min(params.beam_search.candidates(num_ending), vocab_size)
    return replace(params, beam_search=None, temperature=0.0, min_tokens=0, logprobs=wanted)


class BeamGroups:
    """Collects what steps bring of each search's beams, and lets them go on when all have it.

    The beams of a request may be computed in several steps. Log-probabilities of a row are the
    same in any step, so those of a beam that was preempted stand, and come once more unchanged.
    Nothing of a request is reported before its search is over.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._groups: dict[str, _Group] = {}

    @property
    def any(self) -> bool:
        return bool(self._groups)

    def holds(self, request_id: str) -> bool:
        return request_id in self._groups

    def add(self, leader: SequenceState) -> None:
        """Expect the beams of a request that the scheduler has taken."""
        self._groups[leader.request_id] = _Group(leader)

    def drop(self, request_id: str) -> None:
        """Forget a request, which has ended; unknown ones are ignored."""
        self._groups.pop(request_id, None)

    def take_in(
        self, step: ScheduledStep, logprobs: Mapping[int, Sequence[TokenLogprobs]]
    ) -> list[SequenceUpdate]:
        """Take in what an executed step brings, by the index of its samples; returns the results of
        the searches that are over."""
        updates: list[SequenceUpdate] = []
        i = 0
        for each in step.sequences:
            for sequence in each.samples:
                group = self._groups.get(sequence.request_id) if sequence.is_beam else None
                # A beam that was preempted may have gone on before its step came.
                now = each.start + each.num_tokens == sequence.num_tokens
                if group is not None and now and i in logprobs:
                    group.rows[sequence] = logprobs[i][0].top
                i += 1
        for request_id, group in list(self._groups.items()):
            if group.complete and not any(map(self._scheduler.in_flight, group.sequences)):
                group.advance(self._scheduler)
                if group.beams.over:
                    updates += group.results()
                    self._scheduler.abort(request_id)
                    self.drop(request_id)
        return updates


class _Group:
    """The sequences of one search, in the order of its running beams."""

    def __init__(self, leader: SequenceState) -> None:
        params = leader.params
        assert params.beam_search is not None
        self._leader = leader
        self.sequences = [leader, *leader.siblings]
        self.rows: dict[SequenceState, list[tuple[int, float]]] = {}
        """The likeliest tokens behind each sequence, as far as they are known."""
        self.beams = Beams(
            params.beam_search,
            leader.ending_token_ids,
            params.min_tokens,
            leader.max_total_tokens - leader.num_prompt_tokens,
        )

    @property
    def complete(self) -> bool:
        running = self.sequences[: self.beams.num_running]
        return all(sequence in self.rows for sequence in running)

    def advance(self, scheduler: Scheduler) -> None:
        running = self.sequences[: self.beams.num_running]
        picks = self.beams.advance([self.rows[sequence] for sequence in running])
        self.rows.clear()
        if picks:
            parents, tokens = [p.parent for p in picks], [p.token_id for p in picks]
            self.sequences = scheduler.go_on(self.sequences, parents, tokens)

    def results(self) -> list[SequenceUpdate]:
        """One update for each output that was asked for, with all that is in it."""
        finished = self.beams.finished[: self._leader.params.n]
        return [self._result(index, beam) for index, beam in enumerate(finished)]

    def _result(self, index: int, beam: Beam) -> SequenceUpdate:
        leader, tokens = self._leader, beam.tokens
        last, count = beam.last.token_id, leader.params.logprobs
        stopped = last in leader.ending_token_ids
        kept = None
        if count is not None:
            kept = [TokenLogprobs(t.token_id, t.logprob, t.rank, t.top[:count]) for t in tokens]
        return SequenceUpdate(
            leader.request_id,
            index,
            [token.token_id for token in tokens],
            logprobs=kept,
            num_cached_tokens=leader.num_cached_tokens,
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            stop_reason=last if stopped and last not in leader.eos_token_ids else None,
            scheduled_at=leader.scheduled_at,
            num_restored_tokens=leader.num_restored_tokens,
            num_host_tokens=leader.num_host_tokens,
        )
