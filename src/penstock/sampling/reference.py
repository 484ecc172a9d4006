"""Sampling in NumPy: the definition that native kernels are compared with, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask, allowed
from penstock.interface.sampler import NewSequence, Sampler, logits_error
from penstock.sampling.logprobs import NO_TOKEN_LEFT, token_logprobs
from penstock.sampling.select import draw_token
from penstock.sampling.sequence import SequenceSampler


class NumpySampler(Sampler[SequenceSampler]):
    """Holds scratch memory only."""

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.float32)

    def state(self, sequence: NewSequence) -> SequenceSampler:
        return SequenceSampler(sequence)

    def draw(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        states: Sequence[SequenceSampler],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], dict[int, str]]:
        tokens: list[int] = []
        errors: dict[int, str] = {}
        # Scaled differences may overflow to -inf, which is the right answer: weight zero.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for i, (row, state) in enumerate(zip(rows, states, strict=True)):
                mask = None if masks is None else masks[i]
                token, error = self._draw(logits[row], state, mask)
                tokens.append(token)
                if error is not None:
                    errors[i] = error
        return tokens, errors

    def token_logprobs(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[TokenLogprobs]:
        return [
            token_logprobs(logits[row], token, count)
            for row, token, count in zip(rows, token_ids, counts, strict=True)
        ]

    def _draw(
        self, logits: NDArray[np.float32], state: SequenceSampler, mask: TokenMask | None
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
        if state.changes_logits or mask is not None:
            state.apply(scratch)
            if mask is not None:
                scratch[~allowed(mask, len(scratch))] = -np.inf
            peak = scratch.max()
            if not np.isfinite(peak):
                return -1, NO_TOKEN_LEFT
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
