"""EAGLE 1: drafts the target's next feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from transformers import LlamaConfig

from penstock.train.draft_attention import Ancestors
from penstock.train.draft_heads import DECAY, Observed, Readout, soft_cross_entropy
from penstock.train.eagle import DraftLayer, EagleHeads

NOISE: Final = 0.1
"""EAGLE 1 adds uniform noise of this size to features, so that it bears its own errors."""
TOKEN_WEIGHT: Final = 0.1
"""The paper's weight of tokens in the loss, beside features at 1."""


class Eagle1Heads(EagleHeads):
    """Predicts the target's next feature; the target's own output matrix reads it.

    ``readout`` is that matrix, and what else makes the target's logits of a feature;
    ``token_weight`` what tokens weigh in the loss beside features.
    """

    output: Tensor
    output_bias: Tensor | None

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Tensor,
        readout: Readout,
        steps: int = 1,
        token_weight: float = TOKEN_WEIGHT,
    ) -> None:
        super().__init__(config, embedding, steps)
        self.token_weight = token_weight
        own = readout.frozen()
        self._readout = own
        # As buffers they go where the module goes.
        self.register_buffer("output", own.weight, persistent=False)
        self.register_buffer("output_bias", own.bias, persistent=False)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = DraftLayer(config, config.hidden_size)
        nn.init.zeros_(self.fc.bias)

    def begin(self, observed: Observed, rows: int) -> Tensor:
        features = observed.hidden[:, :rows].float()
        if self.training:
            features = features + torch.empty_like(features).uniform_(-NOISE, NOISE)
        return features

    def row(self, before: Tensor, embedded: Tensor, ancestors: Ancestors) -> Tensor:
        x = self.fc(torch.cat((embedded, before), -1))
        out: Tensor = self.layer(x, x, ancestors)
        return out

    def logits(self, x: Tensor) -> Tensor:
        return replace(self._readout, weight=self.output, bias=self.output_bias).logits(x)

    def loss(self, observed: Observed) -> Tensor:
        """Return the smooth L1 loss to the next feature plus the weighted cross entropy of its
        token."""
        wanted = observed.logits.float().softmax(-1)
        total = wanted.new_zeros(())
        for step, x in enumerate(self.unroll(observed, self.steps)):
            ahead = slice(1 + step, 1 + step + x.shape[1])
            feature = nn.functional.smooth_l1_loss(x.float(), observed.hidden[:, ahead].float())
            token = soft_cross_entropy(self.logits(x), wanted[:, ahead])
            total = total + DECAY**step * (feature + self.token_weight * token)
        return total

    def linear_pairs(self, observed: Observed) -> list[tuple[Tensor, Tensor]]:
        """Return what a row reads and the feature that it should predict."""
        embedded = nn.functional.embedding(observed.tokens[:, 1:], self.embedding)
        features = observed.hidden.float()
        return [(torch.cat((embedded, features[:, :-1]), -1), features[:, 1:])]

    def start_from(self, maps: list[Tensor]) -> None:
        self.fc.weight.copy_(maps[0])

    def config(self) -> Mapping[str, object]:
        return {**super().config(), "bias": True}

    def published(self) -> Mapping[str, Tensor]:
        """Return the checkpoint's tensors without the embedding and output matrix, which are the
        target's."""
        tensors = {
            "fc.weight": self.fc.weight,
            "fc.bias": self.fc.bias,
            **self.layer_tensors(self.layer, "layers.0."),
        }
        return {name: tensor.detach().to(torch.bfloat16) for name, tensor in tensors.items()}
