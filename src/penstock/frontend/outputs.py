"""The outputs that a caller reads: a request's sequences, as of one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock.interface.messages import FinishReason


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """Log-probability of a token at one position."""

    logprob: float
    rank: int  # 1 is the most likely
    decoded_token: str | None  # None without a tokenizer


PositionLogprobs = dict[int, Logprob]
"""Log-probabilities at one position by token id: the chosen (or prompt) token first, then the most
likely ones."""


class OutputDelta(msgspec.Struct, frozen=True):
    """What one sequence gained between two outputs: its new text, tokens and log-probabilities."""

    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None


@dataclass(slots=True)
class SequenceRecord:
    """Everything that a sequence has produced; its lists only grow."""

    logprobs: list[PositionLogprobs] | None
    parts: list[str] = field(default_factory=list)
    """Pieces of the text, in order; none is empty."""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_drafted: int = 0
    num_accepted: int = 0


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
        "num_accepted_tokens",
        "num_drafted_tokens",
        "stop_reason",
    )

    def __init__(self, index: int, record: SequenceRecord) -> None:
        self.index = index
        self.cumulative_logprob: float | None = (
            None if record.logprobs is None else record.cumulative_logprob
        )
        """Sum of the chosen tokens' log-probabilities; None if log-probabilities were not
        requested."""
        reason = record.finish_reason
        self.finish_reason: str | None = None if reason is None else reason.value
        """Why the sequence ended: stop, length, abort or error. None while it runs."""
        self.stop_reason: str | int | None = record.stop_reason
        """The stop string or stop token id of the request that ended the sequence, if one did."""
        self.num_drafted_tokens = record.num_drafted
        """Number of draft tokens (of speculative decoding) that were verified."""
        self.num_accepted_tokens = record.num_accepted
        """Number of draft tokens that were accepted and became output."""
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
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def logprobs(self) -> list[PositionLogprobs] | None:
        """One entry per token in ``token_ids``; None if not asked for."""
        logprobs = self._record.logprobs
        return None if logprobs is None else logprobs[: self._num_tokens]

    def has_text_since(self, earlier: CompletionOutput | None) -> bool:
        """Whether :meth:`since` would return any text."""
        return self._num_parts > (0 if earlier is None else earlier._num_parts)

    def since(self, earlier: CompletionOutput | None) -> OutputDelta:
        """Return what was added after ``earlier``, an output of the same sequence (None:
        everything)."""
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


class RequestMetrics(msgspec.Struct, frozen=True, gc=False):
    """When things happened to a request, in seconds of the processor's clock."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    scheduled_time: float | None = None
    """When prefill began, on the clock of time.monotonic(); known with the first token."""


class RequestOutput(msgspec.Struct, frozen=True):
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
    embedding: bytes | None = None
    """The embedding, for a pooling request that has finished: float32, little endian. Else None."""
    refused: bool = False  # the error is the request's fault
    num_restored_tokens: int = 0  # of num_cached_tokens, those that came from below the KV cache
    num_host_tokens: int = 0  # of these, from the host's memory; the others were read from disk
