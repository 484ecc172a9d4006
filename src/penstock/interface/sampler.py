"""Choosing the next token of every sequence in a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.errors import RequestError
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask
from penstock.interface.step import Int32s, StepResult
from penstock.sampling.params import SamplingParams

NON_FINITE = (
    "the model produced {what} logits for this request, so no token can be chosen; check the "
    "checkpoint and its quantization; if the model runs in 16 bits, float32 may hold what these do "
    "not (--dtype float32)"
)


def logits_error(peak: float) -> str | None:
    """Return what is wrong with a row whose largest logit is ``peak`` (NaN if any is NaN), or
    None."""
    if math.isfinite(peak):
        return None
    if math.isnan(peak):
        return NON_FINITE.format(what="NaN")
    return NON_FINITE.format(what="infinite" if peak > 0 else "only negative infinite")


class SamplingState(Protocol):
    """What sampling must know about one sequence. It is a function of its prompt, output and
    key."""

    @property
    def plain(self) -> bool:
        """Whether only the largest logit is ever wanted, so that :meth:`append` need not be
        called."""
        ...

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is chosen and neither options nor a grammar ever change the
        logits."""
        ...

    @property
    def logprobs(self) -> int | None: ...

    def append(self, token_id: int) -> None:
        """Record the next output token."""
        ...


State = TypeVar("State", bound=SamplingState)


@dataclass(frozen=True, slots=True)
class NewSequence:
    """What a sampler needs to know of a sequence, given once, before its first token."""

    params: SamplingParams
    key: int
    """What decides its random draws (:func:`~penstock.sampling.draws.sequence_key`)."""
    prompt_token_ids: Sequence[int]
    vocab_size: int
    eos_token_ids: Collection[int] = ()
    """Tokens that end it unless ``params.ignore_eos``."""


class Sampled(msgspec.Struct, frozen=True):
    """The results of one call. Dictionary keys and ``not_plain`` are indices into the rows asked
    for."""

    token_ids: list[int]
    """One token id per row; meaningless for a row with an error."""
    errors: dict[int, str] = {}
    """Why no token could be chosen, by row; only that row's request fails."""
    logprobs: dict[int, TokenLogprobs] = {}
    """Log-probabilities by row, for the rows whose states ask for them."""
    not_plain: list[int] = []
    """Rows whose states are not ``plain``: the caller must tell these which token was chosen."""


class Sampler(ABC, Generic[State]):
    """Chooses tokens row by row. Not thread-safe.

    A row's outcome is a function of its logits and its sequence's state, whatever other rows there
    are. The order of operations on a row is that of
    :class:`~penstock.sampling.params.SamplingParams`. ``NumpySampler`` defines what every other
    sampler computes, bit by bit.
    """

    @abstractmethod
    def state(self, sequence: NewSequence) -> State:
        """The state of a sequence without output.

        Raises RequestError if the prompt or an option names a token outside the vocabulary.
        """

    @abstractmethod
    def draw(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        states: Sequence[State],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], dict[int, str]]:
        """Choose by the states' options from ``logits`` [R, vocab]: tokens, and errors by index.

        ``masks``: what each sequence's grammar allows, if it has one.
        """

    @abstractmethod
    def token_logprobs(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[TokenLogprobs]:
        """Log-softmax of rows of ``logits`` [R, vocab] at a token each and at each row's
        ``counts`` largest; the row's maximum must be finite."""

    def sample(
        self,
        result: StepResult,
        rows: Sequence[int],
        states: Sequence[State],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> Sampled:
        """Choose a token for each of ``states``, from these ``rows`` of ``result.logits``.

        Several may read the same row (the n sequences of a prompt). ``masks``, where there are
        any, has one for each state whose options have a grammar. ``result`` is only read. Does not
        append the tokens to the states.
        """
        token_ids, errors = largest(result, rows)
        not_plain = [i for i, state in enumerate(states) if not state.plain]
        if not not_plain:
            return Sampled(token_ids, errors)
        drawn = [i for i in not_plain if not states[i].greedy and i not in errors]
        if drawn:
            tokens, failed = self.draw(
                result.logits,
                [rows[i] for i in drawn],
                [states[i] for i in drawn],
                None if masks is None else [masks[i] for i in drawn],
            )
            for i, token in zip(drawn, tokens, strict=True):
                token_ids[i] = token
            errors |= {drawn[i]: message for i, message in failed.items()}
        wanted = {i: states[i].logprobs for i in not_plain if i not in errors}
        counts = {i: count for i, count in wanted.items() if count is not None}
        reports = self.token_logprobs(
            result.logits,
            [rows[i] for i in counts],
            [token_ids[i] for i in counts],
            list(counts.values()),
        )
        return Sampled(token_ids, errors, dict(zip(counts, reports, strict=True)), not_plain)

    def prompt_logprobs(
        self, logits: NDArray[np.float32], targets: Sequence[int], count: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of prompt tokens: row ``i`` of ``logits`` [n, vocab] predicts target
        ``i``. Raises RequestError if a row is not finite.
        """
        if len(logits) != len(targets):
            raise ValueError(f"{len(logits)} rows of logits for {len(targets)} target tokens")
        for peak in logits.max(axis=1).tolist():
            error = logits_error(peak)
            if error is not None:
                raise RequestError(error)
        return self.token_logprobs(logits, range(len(targets)), targets, [count] * len(targets))


def largest(result: StepResult, rows: Sequence[int]) -> tuple[list[int], dict[int, str]]:
    """Each row's arg max, and what is wrong with rows where that is no finite number.

    The arg max of a row that holds a NaN is a NaN, so looking at the winners finds every one.
    """
    index = np.array(rows, np.int32)
    winners: Int32s = result.argmax[index]
    peaks = result.peaks(index)
    errors: dict[int, str] = {}
    if not np.isfinite(peaks).all():
        found = {i: logits_error(peak) for i, peak in enumerate(peaks.tolist())}
        errors = {i: error for i, error in found.items() if error is not None}
    return winners.tolist(), errors
