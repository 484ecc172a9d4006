"""Tiny checkpoints of DeepSeek-V2 with experts, and what is compared with transformers."""

from __future__ import annotations

from support.families.deepseek_v2 import FAMILY as DENSE
from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config=DENSE.config,
    model=DENSE.model,
    fields={
        **DENSE.fields,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_routed_experts": 5,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "moe_intermediate_size": 28,
    },
    cases={
        "deepseek-v2-experts": {},
        "deepseek-v2-groups": {
            "topk_method": "group_limited_greedy",
            "n_routed_experts": 9,
            "n_group": 3,
            "topk_group": 2,
            "n_shared_experts": 1,
            "routed_scaling_factor": 16.0,
            "first_k_dense_replace": 0,
            "mlp_bias": True,
        },
        "deepseek-v2-one-expert": {
            "num_experts_per_tok": 1,
            "n_group": 5,
            "topk_group": 2,
            "q_lora_rank": 28,
        },
    },
    backends=("reference",),
)
