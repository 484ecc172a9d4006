"""Log-probabilities of tokens, from the logits as the model produced them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.interface.logprobs import TokenLogprobs
from penstock.sampling.select import ONE, token_weights, top_ids

NO_TOKEN_LEFT = (
    "min_tokens, logit_bias, penalties and the grammar leave this request no token to choose; "
    "relax them"
)

OF_THE_REQUEST = frozenset((NO_TOKEN_LEFT,))
"""The sampling errors that are caused by what the request asks for, not by the model."""


def token_logprobs(logits: NDArray[np.float32], token_id: int, count: int) -> TokenLogprobs:
    """Log-softmax of ``logits`` [vocab] at ``token_id`` and at its ``count`` largest.

    Before temperature and penalties, as OpenAI's API and vLLM report it. The row's maximum must be
    finite.
    """
    peak = logits.max()
    total = int(token_weights(logits.copy(), peak, np.float32(1.0)).sum())
    chosen = logits[token_id]
    before = int(np.count_nonzero(logits > chosen))
    before += int(np.count_nonzero(logits[:token_id] == chosen))
    top = top_ids(logits, count)
    return report(
        token_id, float(chosen), before + 1, float(peak), total, top.tolist(), logits[top].tolist()
    )


def report(
    token_id: int,
    logit: float,
    rank: int,
    peak: float,
    total: int,
    top_ids: Sequence[int],
    top_logits: Sequence[float],
) -> TokenLogprobs:
    """Log-probabilities from logits and the sum ``total`` of the row's integer weights.

    Weights are integers, so that their sum has one value in whatever order it is formed; what
    rounding them down takes from it is less than 2**-23 of it.
    """
    normalizer = peak + math.log(total / ONE)
    return TokenLogprobs(
        token_id=token_id,
        logprob=logit - normalizer,
        rank=rank,
        top=[
            (token, value - normalizer)
            for token, value in zip(top_ids, top_logits, strict=True)
            if value != -math.inf  # a masked token is not a likely one
        ],
    )
