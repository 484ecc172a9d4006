"""Choosing the next token of every sequence in a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.engine.messages import TokenLogprobs
from penstock.engine.step import StepResult
from penstock.sampling.logprobs import logits_error, prompt_logprobs, token_logprobs
from penstock.sampling.select import draw_token
from penstock.sampling.sequence import SequenceSampler

__all__ = ["SampleRow", "Sampled", "Sampler", "SequenceSampler", "prompt_logprobs"]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token to choose. Several rows may read the same logits (the n sequences of a prompt)."""

    logits_row: int  # into StepResult.logits
    state: SequenceSampler


@dataclass(frozen=True, slots=True)
class Sampled:
    """The chosen token, or why none could be chosen: then only this request fails."""

    token_id: int  # -1 with an error
    logprobs: TokenLogprobs | None = None
    error: str | None = None


class Sampler:
    """Chooses tokens row by row; holds scratch memory only. Not thread-safe.

    A row's outcome is a function of its logits and its sequence's state: it is computed by the
    same operations on an array of the same shape whatever other rows there are. The order of
    operations on a row is that of :class:`~penstock.sampling.params.SamplingParams`.
    """

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.float32)

    def sample(self, result: StepResult, rows: Sequence[SampleRow]) -> list[Sampled]:
        """Choose a token for each of ``rows``, in their order.

        ``result`` is only read. Does not :meth:`~SequenceSampler.append` the tokens.
        """
        # Scaled differences may overflow to -inf, which is the right answer: weight zero.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return [self._sample(result, row) for row in rows]

    def _sample(self, result: StepResult, row: SampleRow) -> Sampled:
        state = row.state
        params = state.params
        logits = result.logits[row.logits_row]
        if params.temperature == 0.0 and not state.changes_logits:
            token = int(result.argmax[row.logits_row])
            # A full scan for NaN would cost as much as the arg max did: look at the winner only.
            error = logits_error(float(logits[token]))
        else:
            token, error = self._process(logits, state)
        if error is not None:
            return Sampled(-1, error=error)
        if params.logprobs is None:
            return Sampled(token)
        report = token_logprobs(logits, token, params.logprobs)
        if not math.isfinite(report.logprob):
            return Sampled(-1, error=logits_error(math.nan))
        return Sampled(token, report)

    def _process(
        self, logits: NDArray[np.float32], state: SequenceSampler
    ) -> tuple[int, str | None]:
        if len(self._scratch) != len(logits):
            self._scratch = np.empty(len(logits), np.float32)
        scratch = self._scratch
        np.copyto(scratch, logits)
        # Looked at before masks are applied, so that the message blames the model or the options.
        peak = scratch.max()
        error = logits_error(float(peak))
        if error is not None:
            return -1, error
        params = state.params
        if state.changes_logits:
            state.apply(scratch)
            peak = scratch.max()
            if not np.isfinite(peak):
                return -1, (
                    "min_tokens, logit_bias and penalties leave this request no token to choose; "
                    "relax them"
                )
        if params.temperature == 0.0:
            return int(scratch.argmax()), None
        token = draw_token(
            scratch,
            peak,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            bits=state.draw(),
        )
        return token, None
