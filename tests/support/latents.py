"""Tiny models whose attention is over latents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.models.spec import AttentionSpec, LatentSpec, LayerSpec, ModelSpec, RopeSpec

LATENT: Final = LatentSpec(kv_rank=40, nope_dim=24, rope_dim=8, v_dim=20, q_rank=28)
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 300,
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "q_lora_rank": 28,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "first_k_dense_replace": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
"""A configuration whose sizes fill no tile evenly, without experts."""


def over_latents(
    spec: ModelSpec, heads: int = 5, window: int | None = None, latent: LatentSpec = LATENT
) -> ModelSpec:
    """The model with attention over latents in each layer."""
    attention = AttentionSpec(
        heads,
        1,
        latent.key_dim,
        RopeSpec(10000.0, latent.rope_dim, interleaved=True),
        scale=(latent.nope_dim + latent.rope_dim) ** -0.5,
        window=window,
        latent=latent,
    )

    def changed(layer: LayerSpec) -> LayerSpec:
        return replace(layer, mixer=attention)

    return replace(spec, layers=tuple(map(changed, spec.layers)))
