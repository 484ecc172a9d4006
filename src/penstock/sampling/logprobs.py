"""Log-probabilities of tokens, from the logits as the model produced them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.engine.messages import TokenLogprobs
from penstock.errors import RequestError
from penstock.sampling.select import top_ids

NON_FINITE = (
    "the model produced {what} logits for this request, so no token can be chosen; check the "
    "checkpoint and its quantization, or load the model with dtype float32"
)


def logits_error(peak: float) -> str | None:
    """What is wrong with a row whose largest logit is ``peak`` (NaN if any is), if anything."""
    if math.isfinite(peak):
        return None
    if math.isnan(peak):
        return NON_FINITE.format(what="NaN")
    return NON_FINITE.format(what="infinite" if peak > 0 else "only negative infinite")


def token_logprobs(logits: NDArray[np.float32], token_id: int, count: int) -> TokenLogprobs:
    """Log-softmax of ``logits`` [vocab] at ``token_id`` and at its ``count`` largest.

    Before temperature and penalties, as OpenAI's API and vLLM report it. The exponentials are
    float32, their sum and the logarithm float64. The row's maximum must be finite.
    """
    peak = logits.max()
    exponentials = np.exp(logits - peak)
    normalizer = float(peak) + math.log(float(exponentials.sum(dtype=np.float64)))
    chosen = logits[token_id]
    before = int(np.count_nonzero(logits > chosen))
    before += int(np.count_nonzero(logits[:token_id] == chosen))
    top = top_ids(logits, count)
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(chosen) - normalizer,
        rank=before + 1,
        top=[
            (int(token), float(logits[token]) - normalizer)
            for token in top
            if logits[token] != -np.inf  # a masked token is not a likely one
        ],
    )


def prompt_logprobs(
    logits: NDArray[np.float32], targets: Sequence[int], count: int
) -> list[TokenLogprobs]:
    """Log-probabilities of prompt tokens: row ``i`` of ``logits`` [n, vocab] predicts target ``i``.

    Raises RequestError if a row is not finite.
    """
    if len(logits) != len(targets):
        raise ValueError(f"{len(logits)} rows of logits for {len(targets)} target tokens")
    result = []
    for row, target in zip(logits, targets, strict=True):
        error = logits_error(float(row.max()))
        if error is not None:
            raise RequestError(error)
        result.append(token_logprobs(row, int(target), count))
    return result
