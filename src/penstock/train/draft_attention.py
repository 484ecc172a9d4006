"""The attention of an EAGLE layer over the rows of several draft steps trained at once.

A window's row ``j`` stands for a prefix of the text, and each draft step extends every prefix by
one row: the row of step ``s`` has position ``j + s``. While the engine drafts, such a row reads
the prefix's rows, which were made from the target's features, and the draft rows between. So here
it attends to the rows ``i <= j`` of step 0, and to the rows ``j`` of steps 1 to ``s``: its own
ancestors, and never to those of another prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


@dataclass
class Ancestors:
    """Keys and values of the steps so far, ``[B, heads, R, D]`` each, step 0 first."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class DraftAttention(nn.Module):
    """Grouped-query attention with rotary embedding; ``inputs`` columns in, hidden size out."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        # LlamaConfig has filled in what was not given.
        assert kv_heads is not None
        assert head_dim is not None
        self.head_dim = head_dim
        self.group = heads // kv_heads
        queries, others = heads * head_dim, kv_heads * head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=False)
        self.k_proj = nn.Linear(inputs, others, bias=False)
        self.v_proj = nn.Linear(inputs, others, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.rope = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor, ancestors: Ancestors) -> Tensor:
        """The rows ``[B, R, inputs]`` of the next step, as ``[B, R, H]``; extends ``ancestors``."""
        step, rows = len(ancestors.keys), x.shape[1]
        positions = torch.arange(step, step + rows, device=x.device)[None]
        cos, sin = self.rope(x, positions)
        q = _rotate(self._heads(self.q_proj(x)), cos, sin)
        k = _rotate(self._heads(self.k_proj(x)), cos, sin).repeat_interleave(self.group, dim=1)
        v = self._heads(self.v_proj(x)).repeat_interleave(self.group, dim=1)
        ancestors.keys.append(k)
        ancestors.values.append(v)
        if step == 0:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        else:
            mixed = self._mix(q, ancestors)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _mix(self, q: Tensor, ancestors: Ancestors) -> Tensor:
        first, *later = ancestors.keys
        rows = q.shape[2]
        q = q * self.head_dim**-0.5
        future = torch.full((rows, rows), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        scores = [q @ first.transpose(2, 3) + future]
        scores += [(q * k).sum(-1, keepdim=True) for k in later]
        weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(q.dtype)
        base, *own = ancestors.values
        mixed = weights[..., :rows] @ base.to(q.dtype)
        for i, v in enumerate(own):
            mixed = mixed + weights[..., rows + i, None] * v
        return mixed

    def _heads(self, x: Tensor) -> Tensor:
        """``[B, R, heads * D]`` as ``[B, heads, R, D]``."""
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs ``(i, i + D / 2)`` of ``[B, heads, R, D]`` by ``[1, R, D]``, in float32."""
    low, high = x.float().chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    rotated: Tensor = (x.float() * cos[:, None] + turned * sin[:, None]).to(x.dtype)
    return rotated
