"""How far a model's predictions of a text are from those of another, mostly the same unrounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.evaluate.perplexity import (
    Perplexity,
    log_probabilities,
    losses_of,
    num_bytes,
    pieces,
)
from penstock.evaluate.text_model import TextModel
from penstock.evaluate.windows import OnWindow, Window


@dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`. Divergences are in nats a token: how much longer a code by the
    model is than one by the base, whose tokens the base draws (Kullback and Leibler)."""

    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    agreement: float
    """The share of tokens at which both think the same token the most likely one."""
    model_perplexity: Perplexity
    base_perplexity: Perplexity

    @property
    def perplexity_ratio(self) -> float:
        """Perplexity of the model over that of the base."""
        return self.model_perplexity.perplexity / self.base_perplexity.perplexity


def compare(
    model: TextModel,
    base: TextModel,
    windows: Sequence[Window],
    progress: OnWindow = lambda done, value: None,
) -> Comparison:
    """Run both over the windows; ``progress`` is told the mean divergence.

    Raises ConfigError if their vocabularies differ, and ModelError where logits are not numbers.
    """
    sizes = model.engine_plan.spec.vocab_size, base.engine_plan.spec.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the models have vocabularies of {sizes[0]} and {sizes[1]} tokens: "
            "divergences are of models that share one"
        )
    losses: list[NDArray[np.float64]] = []
    base_losses: list[NDArray[np.float64]] = []
    divergences: list[NDArray[np.float64]] = []
    same = 0
    for done, window in enumerate(windows, 1):
        both = zip(model.logits(window), base.logits(window), pieces(window), strict=True)
        for logits, base_logits, targets in both:
            ours, theirs = log_probabilities(logits), log_probabilities(base_logits)
            same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
            losses.append(losses_of(ours, targets))
            base_losses.append(losses_of(theirs, targets))
            divergences.append(_divergences(theirs, ours))
        progress(done, float(np.concatenate(divergences).mean()))
    values, counted = np.concatenate(divergences), num_bytes(model, windows)
    return Comparison(
        kl_mean=float(values.mean()),
        kl_median=float(np.median(values)),
        kl_p99=float(np.quantile(values, 0.99)),
        kl_max=float(values.max()),
        agreement=same / len(values),
        model_perplexity=Perplexity.of(np.concatenate(losses), len(windows), counted),
        base_perplexity=Perplexity.of(np.concatenate(base_losses), len(windows), counted),
    )


def _divergences(base: NDArray[np.float64], model: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's divergence, from log-probabilities. What the base thinks impossible costs
    nothing."""
    share = np.exp(base)
    with np.errstate(invalid="ignore"):
        terms = np.where(share > 0, share * (base - model), 0.0)
    sums: NDArray[np.float64] = terms.sum(axis=1)
    return sums.clip(min=0.0)
