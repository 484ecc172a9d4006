"""Sampling by native kernels, on the executor's threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import NativeExecutor, NativeModule, NativeSampleState
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.mask import TokenMask
from penstock.interface.sampler import NON_FINITE, NewSequence, Sampler
from penstock.interface.token_ids import check_token_ids
from penstock.sampling.logprobs import NO_TOKEN_LEFT, report
from penstock.sampling.sequence import bias_of, ending_of

_ERRORS = {
    1: NON_FINITE.format(what="NaN"),
    2: NON_FINITE.format(what="infinite"),
    3: NON_FINITE.format(what="only negative infinite"),
    4: NO_TOKEN_LEFT,
}
"""Error messages by SampleError code of ``csrc/kernels/sample.h``; code 0 means no error."""


class NativeSampler(Sampler[NativeSampleState]):
    """Computes what :class:`~penstock.sampling.reference.NumpySampler` does, bit by bit."""

    def __init__(self, module: NativeModule, executor: NativeExecutor, columns: int) -> None:
        """``columns`` of the logits: the vocabulary, or what a head that drafts knows of it."""
        self._module = module
        self._native = module.Sampler(executor, columns)

    def state(self, sequence: NewSequence) -> NativeSampleState:
        params, vocab_size = sequence.params, sequence.vocab_size
        bias_ids, biases = bias_of(sequence)
        # Penalties that look back at output alone need no prompt.
        looked_at = params.repetition_penalty != 1.0 or params.repeat_last_n is not None
        return self._module.SampleState(
            vocabulary=vocab_size,
            key=sequence.key,
            temperature=params.temperature,
            top_k=min(params.top_k, vocab_size),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repeat_last_n=params.repeat_last_n,
            min_tokens=min(params.min_tokens, _INT64_MAX),
            logprobs=params.logprobs,
            constrained=params.is_constrained,
            logit_bias=list(zip(bias_ids.tolist(), biases.tolist(), strict=True)),
            ending=ending_of(sequence).tolist(),
            prompt=check_token_ids(sequence.prompt_token_ids, vocab_size) if looked_at else [],
        )

    def draw(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        states: Sequence[NativeSampleState],
        masks: Sequence[TokenMask | None] | None = None,
    ) -> tuple[list[int], dict[int, str]]:
        tokens, codes = self._native.choose(logits, rows, states, masks)
        return tokens, {i: _ERRORS[code] for i, code in enumerate(codes) if code}

    def token_logprobs(
        self,
        logits: NDArray[np.float32],
        rows: Sequence[int],
        token_ids: Sequence[int],
        counts: Sequence[int],
    ) -> list[TokenLogprobs]:
        found = self._native.report(logits, rows, token_ids, counts)
        return [report(token, *entry) for token, entry in zip(token_ids, found, strict=True)]


_INT64_MAX = 2**63 - 1
