"""Tiny checkpoints of GPT-2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "dtype": "float32",  # where it is absent, files of weights are asked
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 2,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
FAMILY = TinyFamily(
    config="GPT2Config",
    model="GPT2LMHeadModel",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    spread=0.05,
    cases={
        "gpt2": {"n_inner": 100},
        "gpt2-unscaled": {
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "num_hidden_layers": 3,
            "activation_function": "relu",
        },
        "gpt2-96": {
            "hidden_size": 288,
            "num_attention_heads": 3,
            "reorder_and_upcast_attn": True,
            "scale_attn_by_inverse_layer_idx": True,
        },
    },
    served={"tie_word_embeddings": True},
    published=PUBLISHED,
)
