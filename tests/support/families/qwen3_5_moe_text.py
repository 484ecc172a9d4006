"""Tiny checkpoints of Qwen3.5's language models with experts, as compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily
from support.families.qwen3_5_text import NETS
from support.families.qwen3_5_text import PUBLISHED as DENSE

PUBLISHED: dict[str, Any] = {
    **{name: value for name, value in DENSE.items() if name != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "hidden_size": 2048,
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
}
FAMILY = TinyFamily(
    config="Qwen3_5MoeTextConfig",
    model="Qwen3_5MoeForCausalLM",
    fields={
        **NETS,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 44,
    },
    cases={
        "qwen3_5-moe": {},
        "qwen3_5-moe-other": {
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
            "num_experts_per_tok": 1,
            "linear_num_key_heads": 1,
            "linear_conv_kernel_dim": 3,
        },
    },
    lacks=("intermediate_size",),
    # transformers starts with states that forget all at once.
    factors={"A_log": -1.0},
    published=PUBLISHED,
)
