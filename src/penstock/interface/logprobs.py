"""Log-probabilities as the engine reports them."""

from __future__ import annotations

import msgspec


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of one chosen (or prompt) token and of the likeliest ones beside it."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely
    top: list[tuple[int, float]]  # (token id, log-probability), most likely first
