"""What EAGLE 1 and EAGLE 3 share: a decoder layer that drafts from what the target computed.

Li et al., 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", and 2025,
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
EAGLE 2 drafts trees with the weights of either.

Row ``j`` reads the target's features of position ``j`` and the embedding of token ``j + 1``, and
predicts token ``j + 2``. The row that follows a draft reads the layer's own last output instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from penstock.train.draft_attention import Ancestors, DraftAttention
from penstock.train.draft_heads import Guesses, Heads, Observed, frozen

GUESSED_STEPS: Final = 3
"""Number of positions whose agreement is reported, even where fewer are trained."""


class DraftLayer(nn.Module):
    """A Llama layer without its first norm: attention reads ``wide``, what is added to is ``x``."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, inputs)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)
        # So the layer starts as the identity, and what comes before it may be fitted.
        nn.init.zeros_(self.self_attn.o_proj.weight)
        nn.init.zeros_(self.mlp.down_proj.weight)

    def forward(self, x: Tensor, wide: Tensor, ancestors: Ancestors) -> Tensor:
        """Return the residual stream after the layer; ``x`` is ``[B, R, H]``, ``wide`` ``[B, R,
        inputs]``."""
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
        """Return the substitute ``[B, rows, H]`` for the draft's own last output in rows of the
        target."""

    @abstractmethod
    def row(self, before: Tensor, embedded: Tensor, ancestors: Ancestors) -> Tensor:
        """Return the output ``[B, R, H]`` of rows; ``before`` is the output of the rows before
        them."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits over the draft's vocabulary for outputs ``[B, R, H]``."""

    def unroll(self, observed: Observed, steps: int) -> list[Tensor]:
        """The outputs of each draft step, ``[B, T - steps, H]`` each.

        Every step is given the text's own tokens, and its own last output as features. Row ``j``
        of step ``s`` predicts token ``j + 2 + s``, as row ``j + 1 + s`` of the target does.
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
        """Map token ids of the draft's vocabulary to those of the target's."""
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
