"""Medusa-1: heads on the target's last hidden state, each for a token further ahead.

Cai et al., 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
Heads". The target stays frozen.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from penstock.train.draft_heads import DECAY, Guesses, Heads, Observed, frozen, soft_cross_entropy


class ResBlock(nn.Module):
    """``x + silu(W x + b)``. ``W`` and ``b`` start at zero, so the block starts as the identity."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


class MedusaHeads(Heads):
    """``num_heads`` heads of ``num_layers`` blocks and an output matrix each.

    Head ``h`` reads the hidden state of position ``t``, whose row of the target's logits predicts
    token ``t + 1``, and predicts token ``t + 2 + h``. ``output`` is the target's output matrix
    ``[V, H]``, from which each head's own starts.
    """

    weights_file = "medusa_lm_head.safetensors"

    def __init__(self, output: Tensor, num_heads: int, num_layers: int, base_model: str) -> None:
        super().__init__()
        self.vocab, self.hidden = output.shape
        self.num_layers = num_layers
        self.base_model = base_model
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResBlock(self.hidden) for _ in range(num_layers)))
            for _ in range(num_heads)
        )
        self.outputs = nn.ParameterList(nn.Parameter(frozen(output)) for _ in range(num_heads))

    def head(self, h: int, hidden: Tensor) -> Tensor:
        """Logits ``[..., V]`` of head ``h`` for hidden states ``[..., H]``."""
        return nn.functional.linear(self.blocks[h](hidden), self.outputs[h])

    def loss(self, observed: Observed) -> Tensor:
        """Cross entropy against the target's own distribution there, ``0.8 ** h`` a head."""
        wanted = observed.logits.float().softmax(-1)
        total = wanted.new_zeros(())
        for h, (rows, ahead) in enumerate(self._spans(observed)):
            total = total + DECAY**h * soft_cross_entropy(
                self.head(h, observed.hidden[:, rows]), wanted[:, ahead]
            )
        return total

    def guess(self, observed: Observed) -> list[Guesses]:
        chosen = observed.logits.argmax(-1)
        return [
            Guesses(
                self.head(h, observed.hidden[:, rows]).argmax(-1).flatten(),
                chosen[:, ahead].flatten(),
            )
            for h, (rows, ahead) in enumerate(self._spans(observed))
        ]

    def linear_pairs(self, observed: Observed) -> list[tuple[Tensor, Tensor]]:
        """Hidden states, and those which the target's output matrix would read further ahead."""
        hidden = observed.hidden
        return [(hidden[:, rows], hidden[:, ahead]) for rows, ahead in self._spans(observed)]

    def start_from(self, maps: list[Tensor]) -> None:
        for output, map_ in zip(self.outputs, maps, strict=True):
            output.copy_(output @ map_)

    def _spans(self, observed: Observed) -> list[tuple[slice, slice]]:
        """Return, for each head, the rows it reads and the target's rows that predict the same
        tokens."""
        length = observed.tokens.shape[1]
        return [(slice(0, length - 1 - h), slice(1 + h, length)) for h in range(len(self.outputs))]

    def config(self) -> Mapping[str, object]:
        return {
            "medusa_num_heads": len(self.outputs),
            "medusa_num_layers": self.num_layers,
            "base_model_name_or_path": self.base_model,
            "hidden_size": self.hidden,
            "vocab_size": self.vocab,
            "torch_dtype": "bfloat16",
            "version": "2",
        }

    def published(self) -> Mapping[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for h, output in enumerate(self.outputs):
            for layer, (weight, bias) in enumerate(self._linears(h)):
                tensors[f"{h}.{layer}.linear.weight"] = weight
                tensors[f"{h}.{layer}.linear.bias"] = bias
            tensors[f"{h}.{self.num_layers}.weight"] = output
        return {name: tensor.detach().to(torch.bfloat16) for name, tensor in tensors.items()}

    def _linears(self, h: int) -> list[tuple[Tensor, Tensor]]:
        named = dict(self.blocks[h].named_parameters())
        return [
            (named[f"{layer}.linear.weight"], named[f"{layer}.linear.bias"])
            for layer in range(self.num_layers)
        ]
