"""EAGLE 3: drafts from three places of the target, trained on its own drafts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from penstock.train.draft_attention import Ancestors
from penstock.train.draft_heads import DECAY, Observed, frozen, soft_cross_entropy
from penstock.train.eagle import DraftLayer, EagleHeads


class Eagle3Heads(EagleHeads):
    """Reads three places of the target's residual stream, and has an output matrix of its own.

    ``layers`` are the tapped layers, ``drafted`` the target's ids of the draft's vocabulary
    (int64 ``[Vd]``, ascending), ``output`` ``[V, H]`` and ``norm`` ``[H]`` the target's, from
    whose values the draft's own start.
    """

    drafted: Tensor

    def __init__(
        self,
        config: LlamaConfig,
        embedding: Tensor,
        output: Tensor,
        norm: Tensor,
        layers: tuple[int, ...],
        drafted: Tensor,
        steps: int,
    ) -> None:
        super().__init__(config, embedding, steps)
        hidden = config.hidden_size
        self.layers = layers
        self.register_buffer("drafted", drafted, persistent=False)
        self.fc = nn.Linear(len(layers) * hidden, hidden, bias=False)
        self.hidden_norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.input_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.layer = DraftLayer(config, 2 * hidden)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(drafted), bias=False)
        with torch.no_grad():
            self.norm.weight.copy_(frozen(norm))
            self.lm_head.weight.copy_(frozen(output)[drafted.to(output.device)])

    def begin(self, observed: Observed, rows: int) -> Tensor:
        out: Tensor = self.fc(observed.taps[:, :rows])
        return out.float()

    def row(self, before: Tensor, embedded: Tensor, ancestors: Ancestors) -> Tensor:
        wide = torch.cat((self.input_layernorm(embedded), self.hidden_norm(before)), -1)
        out: Tensor = self.layer(before, wide, ancestors)
        return out

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.lm_head(self.norm(x))
        return out

    def loss(self, observed: Observed) -> Tensor:
        """Cross entropy against the target's distribution over the draft's vocabulary.

        Positions at which the target would choose a token that cannot be drafted do not count.
        """
        whole = len(self.drafted) == observed.logits.shape[-1]
        logits = observed.logits if whole else observed.logits[..., self.drafted]
        wanted = logits.float().softmax(-1)
        can = None if whole else torch.isin(observed.logits.argmax(-1), self.drafted)
        total = wanted.new_zeros(())
        for step, x in enumerate(self.unroll(observed, self.steps)):
            ahead = slice(1 + step, 1 + step + x.shape[1])
            counted = None if can is None else can[:, ahead]
            total = total + DECAY**step * soft_cross_entropy(
                self.logits(x), wanted[:, ahead], counted
            )
        return total

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return self.drafted[draft_ids]

    def linear_pairs(self, observed: Observed) -> list[tuple[Tensor, Tensor]]:
        """The taps, and what the target's final norm makes of the next position, unweighted."""
        return [(observed.taps[:, :-1], observed.hidden[:, 1:].float() / self.norm.weight)]

    def start_from(self, maps: list[Tensor]) -> None:
        self.fc.weight.copy_(maps[0])

    def config(self) -> Mapping[str, object]:
        """Return the configuration. At the top level, layers are named whose inputs are read; in
        ``eagle_config``, where other readers look, the layers before them, whose outputs those
        are."""
        config = {
            **super().config(),
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(self.drafted),
            "target_hidden_size": self.llama.hidden_size,
            "eagle_aux_hidden_state_layer_ids": list(self.layers),
        }
        if min(self.layers) > 0:  # nothing comes before layer 0
            before = [layer - 1 for layer in self.layers]
            config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": before}
        return config

    def published(self) -> Mapping[str, Tensor]:
        """Return the checkpoint's tensors without the embedding, which is the target's."""
        tensors = {
            "fc.weight": self.fc.weight,
            "midlayer.hidden_norm.weight": self.hidden_norm.weight,
            "midlayer.input_layernorm.weight": self.input_layernorm.weight,
            **self.layer_tensors(self.layer, "midlayer."),
            "norm.weight": self.norm.weight,
            "lm_head.weight": self.lm_head.weight,
        }
        out = {name: tensor.detach().to(torch.bfloat16) for name, tensor in tensors.items()}
        can = torch.zeros(self.llama.vocab_size, dtype=torch.bool, device=self.drafted.device)
        can[self.drafted] = True
        own = torch.arange(len(self.drafted), device=self.drafted.device)
        return {**out, "d2t": self.drafted - own, "t2d": can}
