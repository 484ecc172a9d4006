"""How long two models write the same: greedy continuations of the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import ConfigError


@dataclass(frozen=True)
class Agreement:
    """How far continuations of a model agree with those of a base.

    Once one token differs, what follows is a continuation of another text, so tokens behind the
    first difference are not compared.
    """

    prompts: int
    prompt_tokens: int
    """Number of tokens in each prompt."""
    tokens: int
    """Number of tokens in each continuation."""
    identical: float
    """The share of continuations that are the same, token by token."""
    same_mean: float
    """The mean number of tokens before the first difference; ``tokens`` where there is none."""
    same_median: float
    same_p10: float
    """Nine in ten continuations are the same for at least so many tokens."""

    @classmethod
    def of(
        cls, prompt_tokens: int, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
    ) -> Agreement:
        """Return the figures of continuations, all of one length, of prompts that each have
        ``prompt_tokens`` tokens."""
        lengths = np.array([same_tokens(a, b) for a, b in zip(ours, theirs, strict=True)])
        tokens = len(ours[0])
        return cls(
            prompts=len(ours),
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            identical=float((lengths == tokens).mean()),
            same_mean=float(lengths.mean()),
            same_median=float(np.median(lengths)),
            same_p10=float(np.quantile(lengths, 0.1, method="lower")),
        )


def same_tokens(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of tokens before the first at which two texts differ."""
    for place, (ours, theirs) in enumerate(zip(a, b, strict=True)):
        if ours != theirs:
            return place
    return len(a)


def cut_prompts(token_ids: Sequence[int], size: int, most: int, bos: int | None) -> list[list[int]]:
    """Return up to ``most`` prompts of ``size`` tokens, from places of a text that lie evenly
    apart; each begins with ``bos`` unless it is None.

    ``token_ids`` is the text without special tokens around it. Raises ConfigError if it is too
    short for one.
    """
    own = size - (bos is not None)
    count = min(most, len(token_ids) // max(own, 1))
    if own < 1 or count < 1:
        raise ConfigError(
            f"the text has {len(token_ids)} tokens, less than a prompt of {size}; give a longer "
            "text, or at least 2 --prompt-tokens"
        )
    apart = len(token_ids) // count
    starts = range(0, count * apart, apart)
    begin = [] if bos is None else [bos]
    return [begin + list(token_ids[start : start + own]) for start in starts]
