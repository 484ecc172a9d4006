"""Tiny checkpoints of DeepSeek-V3 with experts, and what is compared with transformers."""

from __future__ import annotations

from support.families.deepseek_v3 import FAMILY as DENSE
from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config=DENSE.config,
    model=DENSE.model,
    fields={
        **DENSE.fields,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 28,
    },
    cases={
        "deepseek-v3-experts": {},
        "deepseek-v3-one-group": {
            "n_routed_experts": 5,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 0.7,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
        },
    },
    backends=("reference",),
)
