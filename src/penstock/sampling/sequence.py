"""What sampling must know about one sequence, and how that changes its logits."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sampler import NewSequence
from penstock.interface.token_ids import check_token_ids
from penstock.sampling.draws import draw64

_NONE: NDArray[np.int64] = np.empty(0, np.int64)


class SequenceSampler:
    """Sampling state of one sequence: a function of its prompt, its output and its key only.

    Created when the request is admitted, fed every output token with :meth:`append`, and kept
    across preemption.

    Raises RequestError if the prompt or an option names a token outside the vocabulary.
    """

    def __init__(self, sequence: NewSequence) -> None:
        params, vocab_size = sequence.params, sequence.vocab_size
        self.params = params
        self.vocab_size = vocab_size
        self.num_output = 0
        self._key = sequence.key
        self._bias_ids, self._bias = bias_of(sequence)
        self._ending = ending_of(sequence)
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        last = params.repeat_last_n
        self._penalizes_seen = params.repetition_penalty != 1.0 and last != 0
        self._penalizes_output = last != 0 and bool(
            params.frequency_penalty or params.presence_penalty
        )
        self.greedy = params.temperature == 0.0 and not (
            params.is_constrained
            or len(self._bias_ids)
            or len(self._ending)
            or self._penalizes_seen
            or self._penalizes_output
        )
        self.logprobs = params.logprobs
        self.plain = self.greedy and params.logprobs is None
        self._seen = _TokenCounts() if last is None else _RecentTokens(last)
        self._output = _TokenCounts() if last is None else self._seen
        self._looks_back = self._penalizes_seen or (self._penalizes_output and last is not None)
        if self._looks_back:
            for token in check_token_ids(sequence.prompt_token_ids, vocab_size):
                self._seen.add(token)

    def append(self, token_id: int) -> None:
        """Record the next output token."""
        self.num_output += 1
        if self._looks_back:
            self._seen.add(token_id)
        if self._penalizes_output and self._output is not self._seen:
            self._output.add(token_id)

    @property
    def changes_logits(self) -> bool:
        """Whether :meth:`apply` would do anything for the next token."""
        return bool(
            len(self._bias_ids)
            or self._penalizes_seen
            or self._penalizes_output
            or self._is_too_short
        )

    @property
    def _is_too_short(self) -> bool:
        return self.num_output < self.params.min_tokens and len(self._ending) > 0

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Logit bias, minimum length and penalties, in place on ``logits`` [vocab_size]."""
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        if self._is_too_short:
            logits[self._ending] = -np.inf
        if self._penalizes_seen:
            ids = self._seen.ids
            values = logits[ids]
            logits[ids] = np.where(values > 0, values / self._repetition, values * self._repetition)
        if self._penalizes_output:
            ids = self._output.ids
            counts = self._output.counts.astype(np.float32)
            logits[ids] -= self._frequency * counts + self._presence

    def draw(self, stream: int = 0) -> int:
        """The uniform 64-bit integer that decides the next output token."""
        return draw64(self._key, self.num_output, stream)


class _TokenCounts:
    """Distinct token ids in order of arrival, and how often each came; arrays that grow."""

    def __init__(self) -> None:
        self._slot: dict[int, int] = {}
        self._ids = np.empty(16, np.int64)
        self._counts = np.empty(16, np.int64)

    def add(self, token_id: int) -> None:
        slot = self._slot.get(token_id)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._slot)
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._slot[token_id] = slot
        self._ids[slot] = token_id
        self._counts[slot] = 1

    def remove(self, token_id: int) -> None:
        """Take back one :meth:`add`; a token that is none any more keeps its place, for later."""
        self._counts[self._slot[token_id]] -= 1

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._slot)][self._there]

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[: len(self._slot)][self._there]

    @property
    def _there(self) -> NDArray[np.bool_]:
        return self._counts[: len(self._slot)] > 0


class _RecentTokens(_TokenCounts):
    """The counts of the last ``last`` tokens alone; of all for -1."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last
        self._order = deque[int]()

    def add(self, token_id: int) -> None:
        super().add(token_id)
        if self._last < 0:
            return
        self._order.append(token_id)
        if len(self._order) > self._last:
            self.remove(self._order.popleft())


def bias_of(sequence: NewSequence) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Distinct token ids with a logit bias, and the biases: -inf of those that are not allowed.
    Raises RequestError."""
    params, vocab_size = sequence.params, sequence.vocab_size
    if not params.logit_bias and params.allowed_token_ids is None:
        return _NONE, np.empty(0, np.float32)
    given = params.logit_bias or {}
    ids = np.array(check_token_ids(given, vocab_size, "logit_bias"), np.int64)
    bias = np.array(list(given.values()), np.float32)
    if params.allowed_token_ids is None:
        return ids, bias
    banned = np.ones(vocab_size, np.bool_)
    banned[check_token_ids(params.allowed_token_ids, vocab_size, "allowed_token_ids")] = False
    kept, others = ~banned[ids], np.flatnonzero(banned)
    lowest = np.full(len(others), -np.inf, np.float32)
    return np.concatenate([ids[kept], others]), np.concatenate([bias[kept], lowest])


def ending_of(sequence: NewSequence) -> NDArray[np.int64]:
    """Token ids that ``min_tokens`` forbids at first, ascending. Raises RequestError."""
    params, vocab_size = sequence.params, sequence.vocab_size
    if params.min_tokens == 0:
        return _NONE
    ids = set(check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids"))
    if not params.ignore_eos:
        # A checkpoint may declare an end token that its model has no logit for.
        ids.update(token for token in sequence.eos_token_ids if 0 <= token < vocab_size)
    return np.array(sorted(ids), np.int64)
