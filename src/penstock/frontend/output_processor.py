"""Turns the engine's tokens into what a caller reads: text, log-probabilities, finish reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from penstock.errors import RequestError
from penstock.frontend.outputs import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    SequenceRecord,
)
from penstock.frontend.stop_strings import StopSearch, StopStrings
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import Abort, FinishReason, SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import IncrementalDetokenizer, Tokenizer


class OutputProcessor:
    """Keeps what is needed to turn updates into outputs, for all live requests of a front end.

    Each step costs time in proportion to the new tokens' text, not to what came before.
    Without a tokenizer, outputs have token ids and no text. ``clock`` gives seconds.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._requests: dict[str, GrowingRequest] = {}

    def __len__(self) -> int:
        """Number of requests that have not finished."""
        return len(self._requests)

    def add_request(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        public_id: str | None = None,
    ) -> None:
        """Expect updates of this request. Raises RequestError if its id is in use.

        Its outputs call it ``public_id``, where that is another than the engine's.
        """
        if request_id in self._requests:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        if params.stop and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer; this engine has none", "stop")
        self._requests[request_id] = GrowingRequest(
            public_id or request_id,
            prompt,
            prompt_token_ids,
            params,
            self._tokenizer,
            self._clock(),
        )

    def process(self, updates: Iterable[SequenceUpdate]) -> tuple[list[RequestOutput], list[Abort]]:
        """Take in updates from the engine.

        Returns one output for each request that has news, and the aborts to send to the engine for
        sequences that it still runs though stop strings have ended them. Updates of unknown
        requests and of ended sequences are ignored.
        """
        grown, aborts = self.take(updates)
        return [request.output() for request in grown], aborts

    def take(
        self, updates: Iterable[SequenceUpdate]
    ) -> tuple[Iterable[GrowingRequest], list[Abort]]:
        """``process`` for those who do not read every output: these are made when asked for."""
        now = self._clock()
        touched: dict[str, GrowingRequest] = {}
        for update in updates:
            request = self._requests.get(update.request_id)
            if request is not None and request.take(update, now):
                touched[update.request_id] = request
        aborts: list[Abort] = []
        for request_id, request in touched.items():
            if request.stopped:
                aborts += [Abort([request_id], index) for index in request.stopped]
                request.stopped.clear()
            if request.finished:
                del self._requests[request_id]
        return touched.values(), aborts

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Finish these requests here and now; returns their last outputs. Ignores unknown ids."""
        outputs = []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.abort(self._clock())
                outputs.append(request.output())
        return outputs


class _Sequence:
    """One sequence's record and the state of its text."""

    def __init__(
        self,
        params: SamplingParams,
        detokenizer: IncrementalDetokenizer | None,
        stops: StopStrings | None,
    ) -> None:
        self.record = SequenceRecord(None if params.logprobs is None else [])
        self._params = params
        self._detokenizer = detokenizer
        self._search = None if stops is None else StopSearch(stops)
        self._held = ""  # may be the beginning of a stop string

    def take(self, update: SequenceUpdate, logprobs: list[PositionLogprobs] | None) -> bool:
        """Append an update; return whether it ended the sequence."""
        record, tokens, reason = self.record, update.token_ids, update.finish_reason
        stopped = reason is FinishReason.STOP and not update.ends_in_text
        hidden = stopped and not self._params.include_stop_str_in_output
        if update.num_drafted:
            record.num_drafted, record.num_accepted = update.num_drafted, update.num_accepted
        taken = self._take_text(tokens, hidden_last=hidden)
        record.token_ids += tokens if taken == len(tokens) else tokens[:taken]
        if record.logprobs is not None and logprobs is not None:
            record.logprobs += logprobs[:taken]
            for token, position in zip(tokens[:taken], logprobs, strict=False):
                record.cumulative_logprob += position[token].logprob
        if reason is not None:
            self.end(reason, update.stop_reason)
        return record.finish_reason is not None

    def end(self, reason: FinishReason, stop_reason: int | None = None) -> None:
        """The last token is known, unless a stop string has ended the sequence already."""
        record = self.record
        if record.finish_reason is None and self._detokenizer is not None:
            self._show(self._detokenizer.flush())
        if record.finish_reason is None:
            if self._held:
                record.parts.append(self._held)
            record.finish_reason = reason
            record.stop_reason = stop_reason

    def _take_text(self, tokens: Sequence[int], hidden_last: bool) -> int:
        """Detokenize; returns how many tokens belong to the output."""
        if self._detokenizer is None:
            return len(tokens)
        shown = tokens[:-1] if hidden_last else tokens
        if self._search is None:
            self._show(self._detokenizer.push(shown))
            return len(tokens)
        for count, token in enumerate(shown, 1):
            text = self._detokenizer.push((token,))
            # The text of the first min_tokens tokens is beyond any stop string's reach.
            searched = len(self.record.token_ids) + count > self._params.min_tokens
            self._show(text, searched)
            if self.record.finish_reason is not None:
                return count
        return len(tokens)

    def _show(self, text: str, searched: bool = True) -> None:
        """Append to the output what of ``text`` is certain to belong to it."""
        if not text:
            return
        record, search = self.record, self._search
        if search is None or not searched:
            record.parts.append(text)
            return
        match = search.feed(text)
        visible = self._held + text
        if match is None:
            certain = len(visible) - search.undecided
        else:
            certain = len(self._held) + match.end
            if not self._params.include_stop_str_in_output:
                certain -= len(match.stop)
            record.finish_reason = FinishReason.STOP
            record.stop_reason = match.stop
        if certain:
            record.parts.append(visible[:certain])
        self._held = visible[certain:]


class GrowingRequest:
    """One request's sequences. :class:`OutputProcessor` makes them and lets them grow."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        now: float,
    ) -> None:
        self.request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._num_cached_tokens = self._num_restored_tokens = self._num_host_tokens = 0
        self._times = RequestMetrics(now)
        self._error: str | None = None
        self._embedding: bytes | None = None
        self._refused = False
        self.finished = False
        self.stopped: list[int] = []
        """Indices of sequences that stop strings have ended, which the engine has not been asked to
        stop yet."""
        stops = StopStrings(params.stop) if params.stop else None
        self._sequences = [
            _Sequence(
                params,
                None
                if tokenizer is None
                else tokenizer.detokenizer(params.skip_special_tokens, prompt_token_ids),
                stops,
            )
            for _ in range(params.n)
        ]

    def take(self, update: SequenceUpdate, now: float) -> bool:
        """Append an update; return whether the output has changed."""
        sequence = self._sequences[update.index]
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else self._named(entry) for entry in update.prompt_logprobs
            ]
        if sequence.record.finish_reason is not None:
            return False  # a stop string ended it
        if update.num_cached_tokens > self._num_cached_tokens:
            self._num_cached_tokens = update.num_cached_tokens
            self._num_restored_tokens = update.num_restored_tokens
            self._num_host_tokens = update.num_host_tokens
        if update.error is not None and self._error is None:
            self._error = update.error
            self._refused = update.refused
        times = self._times
        self._embedding = update.embedding
        if update.token_ids or update.embedding is not None:
            first = now if times.first_token_time is None else times.first_token_time
            scheduled = times.scheduled_time or update.scheduled_at or None
            self._times = RequestMetrics(times.arrival_time, first, now, None, scheduled)
        logprobs = None
        if update.logprobs is not None:
            logprobs = [self._named(entry) for entry in update.logprobs]
        if sequence.take(update, logprobs):
            if update.finish_reason is None:
                self.stopped.append(update.index)
            self._finish(now)
        return True

    def abort(self, now: float) -> None:
        for sequence in self._sequences:
            sequence.end(FinishReason.ABORT)
        self._finish(now)

    def output(self) -> RequestOutput:
        """Return the request's output as of now."""
        return RequestOutput(
            self.request_id,
            self._prompt,
            self._prompt_token_ids,
            [CompletionOutput(i, s.record) for i, s in enumerate(self._sequences)],
            self.finished,
            self._prompt_logprobs,
            self._num_cached_tokens,
            self._times,
            self._error,
            self._embedding,
            self._refused,
            self._num_restored_tokens,
            self._num_host_tokens,
        )

    def _finish(self, now: float) -> None:
        """The request is finished if all its sequences are."""
        self.finished = all(s.record.finish_reason is not None for s in self._sequences)
        if self.finished:
            self._times = replace(self._times, finished_time=now)

    def _named(self, entry: TokenLogprobs) -> PositionLogprobs:
        position = {entry.token_id: Logprob(entry.logprob, entry.rank, self._text(entry.token_id))}
        for rank, (token, logprob) in enumerate(entry.top, 1):
            if token != entry.token_id:
                position[token] = Logprob(logprob, rank, self._text(token))
        return position

    def _text(self, token_id: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.token_text(token_id)
