"""How far a model's predictions of a text are from those of another, mostly the same unrounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import ConfigError
from penstock.evaluate.distribution import Distribution
from penstock.evaluate.perplexity import Perplexity, num_bytes, pieces
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
    losses: list[float] = []
    base_losses: list[float] = []
    divergences: list[float] = []
    same = 0
    for done, window in enumerate(windows, 1):
        both = zip(model.logits(window), base.logits(window), pieces(window), strict=True)
        for logits, base_logits, targets in both:
            for row, base_row, target in zip(logits, base_logits, targets, strict=True):
                ours, theirs = Distribution.of(row), Distribution.of(base_row)
                same += ours.likeliest == theirs.likeliest
                losses.append(ours.loss(target))
                base_losses.append(theirs.loss(target))
                divergences.append(theirs.divergence(ours))
        progress(done, float(np.mean(divergences)))
    values, counted = np.array(divergences), num_bytes(model, windows)
    return Comparison(
        kl_mean=float(values.mean()),
        kl_median=float(np.median(values)),
        kl_p99=float(np.quantile(values, 0.99)),
        kl_max=float(values.max()),
        agreement=same / len(values),
        model_perplexity=Perplexity.of(np.array(losses), len(windows), counted),
        base_perplexity=Perplexity.of(np.array(base_losses), len(windows), counted),
    )
