"""From the engine's tokens to what a caller reads: text, log-probabilities, finish reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from penstock.engine.messages import FinishReason, SequenceUpdate, TokenLogprobs
from penstock.engine.stop_strings import StopSearch, StopStrings
from penstock.errors import RequestError
from penstock.sampling.params import SamplingParams
from penstock.tokenizer import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of a token at one position."""

    logprob: float
    rank: int  # 1 is the most likely
    decoded_token: str | None  # None without a tokenizer


PositionLogprobs = dict[int, Logprob]
"""By token id: the chosen (or prompt) token first, then the likeliest ones."""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """What one sequence gained between two outputs."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None


class CompletionOutput:
    """One sequence of a request as of one moment: everything so far.

    It refers to the sequence's growing record, which is only ever appended to, so making one at
    every step costs nothing; ``text``, ``token_ids`` and ``logprobs`` are assembled on access.
    """

    __slots__ = (
        "_num_parts",
        "_num_tokens",
        "_record",
        "cumulative_logprob",
        "finish_reason",
        "index",
        "stop_reason",
    )

    def __init__(self, index: int, record: _Record) -> None:
        self.index = index
        self.cumulative_logprob: float | None = (
            None if record.logprobs is None else record.cumulative_logprob
        )
        """Sum of the chosen tokens' log-probabilities, if they were asked for."""
        reason = record.finish_reason
        self.finish_reason: str | None = None if reason is None else reason.value
        """stop, length, abort or error; None while the sequence runs."""
        self.stop_reason: str | int | None = record.stop_reason
        """The stop string or stop token id that ended it, if one of the request's did."""
        self._record = record
        self._num_parts = len(record.parts)
        self._num_tokens = len(record.token_ids)

    @property
    def text(self) -> str:
        """The text so far. What might be the beginning of a stop string is not in it yet."""
        return "".join(self._record.parts[: self._num_parts])

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far, with those that spell a stop string or are a stop token."""
        return self._record.token_ids[: self._num_tokens]

    @property
    def logprobs(self) -> list[PositionLogprobs] | None:
        """One entry per token in ``token_ids``; None if not asked for."""
        logprobs = self._record.logprobs
        return None if logprobs is None else logprobs[: self._num_tokens]

    def since(self, earlier: CompletionOutput | None) -> OutputDelta:
        """What came after ``earlier``, an output of the same sequence (None: everything)."""
        part = 0 if earlier is None else earlier._num_parts
        token = 0 if earlier is None else earlier._num_tokens
        record = self._record
        return OutputDelta(
            text="".join(record.parts[part : self._num_parts]),
            token_ids=record.token_ids[token : self._num_tokens],
            logprobs=(
                None if record.logprobs is None else record.logprobs[token : self._num_tokens]
            ),
        )

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, text={self.text!r}, "
            f"token_ids={self.token_ids}, finish_reason={self.finish_reason!r}, "
            f"stop_reason={self.stop_reason!r})"
        )


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of the processor's clock."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request as of one moment: everything so far, of all its sequences in order of index."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool  # no more outputs follow
    prompt_logprobs: list[PositionLogprobs | None] | None
    num_cached_tokens: int  # prompt tokens that came from the prefix cache
    metrics: RequestMetrics
    error: str | None = None  # why a sequence has finish_reason error


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
        self._requests: dict[str, _Request] = {}

    def __len__(self) -> int:
        """Requests that have not finished."""
        return len(self._requests)

    def add_request(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
    ) -> None:
        """Expect updates of this request. Raises RequestError if its id is in use."""
        if request_id in self._requests:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        if params.stop and self._tokenizer is None:
            raise RequestError("stop strings need a tokenizer; this engine has none", "stop")
        self._requests[request_id] = _Request(
            request_id, prompt, prompt_token_ids, params, self._tokenizer, self._clock()
        )

    def process(self, updates: Iterable[SequenceUpdate]) -> tuple[list[RequestOutput], list[str]]:
        """Take in what the engine produced.

        Returns one output for each request that has news, and the ids of requests that the
        engine still runs though they are done, because stop strings ended their sequences: abort
        those. Updates of unknown requests and of ended sequences are ignored.
        """
        now = self._clock()
        touched: dict[str, _Request] = {}
        for update in updates:
            request = self._requests.get(update.request_id)
            if request is not None and request.take(update, now):
                touched[update.request_id] = request
        to_abort = []
        for request_id, request in touched.items():
            if request.finished:
                del self._requests[request_id]
                if request.runs_in_engine:
                    to_abort.append(request_id)
        return [request.output() for request in touched.values()], to_abort

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Finish these requests here and now; returns their last outputs. Ignores unknown ids."""
        outputs = []
        for request_id in request_ids:
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.abort(self._clock())
                outputs.append(request.output())
        return outputs


@dataclass(slots=True)
class _Record:
    """What a sequence has produced; lists only grow."""

    logprobs: list[PositionLogprobs] | None
    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class _Sequence:
    """One sequence's record and the state of its text."""

    def __init__(
        self,
        params: SamplingParams,
        detokenizer: IncrementalDetokenizer | None,
        stops: StopStrings | None,
    ) -> None:
        self.record = _Record(None if params.logprobs is None else [])
        self.runs_in_engine = True
        self._params = params
        self._detokenizer = detokenizer
        self._search = None if stops is None else StopSearch(stops)
        self._held = ""  # may be the beginning of a stop string
        self._fed = 0  # characters given to the search

    def take(self, update: SequenceUpdate, logprobs: list[PositionLogprobs] | None) -> None:
        record = self.record
        tokens = update.token_ids
        hidden = (
            update.finish_reason is FinishReason.STOP
            and not self._params.include_stop_str_in_output
        )
        taken = self._take_text(tokens, hidden_last=hidden)
        record.token_ids += tokens[:taken]
        if record.logprobs is not None and logprobs is not None:
            record.logprobs += logprobs[:taken]
            for token, position in zip(tokens[:taken], logprobs, strict=False):
                record.cumulative_logprob += position[token].logprob
        if update.finish_reason is not None:
            self.runs_in_engine = False
            self.end(update.finish_reason, update.stop_reason)

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
            certain = match.end - self._fed + len(self._held)
            if not self._params.include_stop_str_in_output:
                certain -= len(match.stop)
            record.finish_reason = FinishReason.STOP
            record.stop_reason = match.stop
        if certain:
            record.parts.append(visible[:certain])
        self._held = visible[certain:]
        self._fed += len(text)


class _Request:
    """One request's sequences."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        now: float,
    ) -> None:
        self._id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._num_cached_tokens = 0
        self._metrics = RequestMetrics(now)
        self._error: str | None = None
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

    @property
    def finished(self) -> bool:
        return all(s.record.finish_reason is not None for s in self._sequences)

    @property
    def runs_in_engine(self) -> bool:
        return any(s.runs_in_engine for s in self._sequences)

    def take(self, update: SequenceUpdate, now: float) -> bool:
        """Returns whether there is news."""
        sequence = self._sequences[update.index]
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else self._named(entry) for entry in update.prompt_logprobs
            ]
        if sequence.record.finish_reason is not None:
            # A stop string ended it; the engine may end it too before the request is done.
            sequence.runs_in_engine &= update.finish_reason is None
            return False
        self._num_cached_tokens = max(self._num_cached_tokens, update.num_cached_tokens)
        self._error = self._error or update.error
        if update.token_ids:
            self._metrics.last_token_time = now
            if self._metrics.first_token_time is None:
                self._metrics.first_token_time = now
        logprobs = update.logprobs
        sequence.take(update, logprobs and [self._named(entry) for entry in logprobs])
        if self.finished:
            self._metrics.finished_time = now
        return True

    def abort(self, now: float) -> None:
        self._metrics.finished_time = now
        for sequence in self._sequences:
            sequence.end(FinishReason.ABORT)

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self._id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[CompletionOutput(i, s.record) for i, s in enumerate(self._sequences)],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
            metrics=self._metrics,
            error=self._error,
        )

    def _named(self, entry: TokenLogprobs) -> PositionLogprobs:
        position = {entry.token_id: Logprob(entry.logprob, entry.rank, self._text(entry.token_id))}
        for rank, (token, logprob) in enumerate(entry.top, 1):
            if token != entry.token_id:
                position[token] = Logprob(logprob, rank, self._text(token))
        return position

    def _text(self, token_id: int) -> str | None:
        return None if self._tokenizer is None else self._tokenizer.token_text(token_id)
