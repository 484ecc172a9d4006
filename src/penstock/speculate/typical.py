"""Typical acceptance: drafted tokens that are likely enough are accepted without being sampled.

Cai et al., "Medusa", 2024, section 2.3.1: a drafted token x passes where
p(x) > min(threshold, alpha * exp(-H(p))), H being the entropy of p in nats. It accepts more than
exact verification does, and changes the distribution of the output, which becomes less random the
better the drafts are. What is drafted, and so the output, may depend on what else runs.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.sampling.params import SamplingParams
from penstock.scheduler.draft import Draft


class Typical(msgspec.Struct, frozen=True):
    """The criterion of typical acceptance, with ``threshold`` and ``alpha`` as above."""

    threshold: float
    alpha: float

    def applies_to(self, params: SamplingParams) -> bool:
        """Return whether a request's distribution is the model's own but for the temperature.

        Requests with penalties, a bias, a grammar or a truncated vocabulary are verified exactly.
        """
        return params.temperature > 0.0 and params == SamplingParams(
            temperature=params.temperature,
            n=params.n,
            seed=params.seed,
            max_tokens=params.max_tokens,
            stop=params.stop,
            stop_token_ids=params.stop_token_ids,
            ignore_eos=params.ignore_eos,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            prompt_logprobs=params.prompt_logprobs,
        )

    def passing(
        self, logits: NDArray[np.float32], temperature: float, draft: Draft, node: int
    ) -> int:
        """Return the likeliest child of ``node`` in the draft if it passes, and else -1.

        ``logits`` ``[vocab]`` are those of the position after ``node``.
        """
        tokens = draft.following(node)
        if not tokens:
            return -1
        scaled = (logits - logits.max()).astype(np.float64) / temperature
        weights = np.exp(scaled)
        total = float(weights.sum())
        entropy = math.log(total) - float((weights * scaled).sum()) / total
        best = max(tokens, key=lambda token: float(weights[token]))
        bound = min(self.threshold, self.alpha * math.exp(-entropy))
        return best if float(weights[best]) / total > bound else -1
