"""EAGLE 1 and EAGLE 3: a decoder layer that drafts from what the target computed.

Li et al., 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", and 2025,
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
EAGLE 2 drafts trees with the weights of either.

Row ``j`` reads the target's features of position ``j`` and the embedding of token ``j + 1``, and
tells token ``j + 2``. The row that follows a draft reads the layer's own last output instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from penstock.train.draft_attention import Ancestors, DraftAttention
from penstock.train.heads import DECAY, Guesses, Heads, Observed, frozen, soft_cross_entropy

NOISE: Final = 0.1
"""EAGLE 1 adds uniform noise of this size to features, so that it bears its own errors."""
TOKEN_WEIGHT: Final = 0.1
"""Of EAGLE 1's loss: tokens, beside features at 1."""


class DraftLayer(nn.Module):
    """A Llama layer without its first norm: attention reads ``wide``, what is added to is ``x``."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, inputs)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, wide: Tensor, ancestors: Ancestors) -> Tensor:
        """``x`` ``[B, R, H]``, ``wide`` ``[B, R, inputs]``; the residual stream behind the layer."""
        x = x + self.self_attn(wide, ancestors)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class EagleHeads(Heads):
    """Shared by both versions: draft steps that are unrolled over every prefix of a window.

    ``config`` is Llama-like, of the layer; ``embedding`` the target's, ``[V, H]``.
    """

    embedding: Tensor

    def __init__(self, config: LlamaConfig, embedding: Tensor, steps: int) -> None:
        super().__init__()
        self.llama = config
        self.steps = steps
        self.register_buffer("embedding", frozen(embedding), persistent=False)

    @abstractmethod
    def begin(self, observed: Observed, rows: int) -> Tensor:
        """What stands for the draft's own last output in rows of the target, ``[B, rows, H]``."""

    @abstractmethod
    def row(self, before: Tensor, embedded: Tensor, ancestors: Ancestors) -> Tensor:
        """The output ``[B, R, H]`` of rows whose predecessors' is ``before``."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Of outputs ``[B, R, H]``, over the draft's vocabulary."""

    def unroll(self, observed: Observed, steps: int) -> list[Tensor]:
        """The outputs of each draft step, ``[B, T - steps, H]`` each.

        Every step is given the text's own tokens, and its own last output as features. Row ``j``
        of step ``s`` tells token ``j + 2 + s``, as row ``j + 1 + s`` of the target does.
        """
        rows = observed.tokens.shape[1] - steps
        ancestors = Ancestors()
        x = self.begin(observed, rows)
        outputs = []
        for step in range(steps):
            embedded = nn.functional.embedding(
                observed.tokens[:, 1 + step : 1 + step + rows], self.embedding
            )
            x = self.row(x, embedded, ancestors)
            outputs.append(x)
        return outputs

    def guess(self, observed: Observed) -> list[Guesses]:
        chosen = observed.logits.argmax(-1)
        guesses = []
        for step, x in enumerate(self.unroll(observed, max(self.steps, GUESSED_STEPS))):
            drafted = self.target_ids(self.logits(x).argmax(-1))
            ahead = chosen[:, 1 + step : 1 + step + x.shape[1]]
            guesses.append(Guesses(drafted.flatten(), ahead.flatten()))
        return guesses

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of tokens of the draft's vocabulary."""
        return draft_ids

    def config(self) -> Mapping[str, object]:
        config = self.llama
        rope = dict(config.rope_parameters or {})
        theta = rope.pop("rope_theta", 10000.0)
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "hidden_act": config.hidden_act,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "num_hidden_layers": 1,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": theta,
            "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
            "bos_token_id": config.bos_token_id,
            "eos_token_id": config.eos_token_id,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": config.vocab_size,
        }

    def layer_tensors(self, layer: DraftLayer, prefix: str) -> dict[str, Tensor]:
        return {f"{prefix}{name}": tensor for name, tensor in layer.named_parameters()}


GUESSED_STEPS: Final = 3
"""Positions whose agreement is told, also where fewer are trained."""


class Eagle1Heads(EagleHeads):
    """Predicts the target's next feature; the target's own output matrix reads it.

    ``output`` is that matrix, ``[V, H]``.
    """

    output: Tensor

    def __init__(
        self, config: LlamaConfig, embedding: Tensor, output: Tensor, steps: int = 1
    ) -> None:
        super().__init__(config, embedding, steps)
        self.register_buffer("output", frozen(output), persistent=False)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = DraftLayer(config, config.hidden_size)
        with torch.no_grad():
            # The feature itself is a fair first guess of the next one.
            self.fc.weight[:, config.hidden_size :] += torch.eye(config.hidden_size)

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
        return nn.functional.linear(x, self.output)

    def loss(self, observed: Observed) -> Tensor:
        """Smooth L1 to the next feature, and a tenth of the cross entropy of its token."""
        wanted = observed.logits.float().softmax(-1)
        total = wanted.new_zeros(())
        for step, x in enumerate(self.unroll(observed, self.steps)):
            ahead = slice(1 + step, 1 + step + x.shape[1])
            feature = nn.functional.smooth_l1_loss(x.float(), observed.hidden[:, ahead].float())
            token = soft_cross_entropy(self.logits(x), wanted[:, ahead])
            total = total + DECAY**step * (feature + TOKEN_WEIGHT * token)
        return total

    def config(self) -> Mapping[str, object]:
        return {**super().config(), "bias": True}

    def published(self) -> Mapping[str, Tensor]:
        tensors = {
            "embed_tokens.weight": self.embedding,
            "fc.weight": self.fc.weight,
            "fc.bias": self.fc.bias,
            **self.layer_tensors(self.layer, "layers.0."),
        }
        return {name: tensor.detach().to(torch.bfloat16) for name, tensor in tensors.items()}


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
            # The last tap, as it is, is a fair start: it is nearest to what the target tells.
            self.fc.weight[:, -hidden:] += torch.eye(hidden)
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

    def config(self) -> Mapping[str, object]:
        return {
            **super().config(),
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(self.drafted),
            "target_hidden_size": self.llama.hidden_size,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.layers)},
        }

    def published(self) -> Mapping[str, Tensor]:
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
