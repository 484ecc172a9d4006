"""Tiny checkpoints of GPTBigCode, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "activation_function": "gelu",
    "architectures": ["GPTBigCodeForCausalLM"],
    "attention_softmax_in_fp32": True,
    "attn_pdrop": 0.1,
    "bos_token_id": 0,
    "embd_pdrop": 0.1,
    "eos_token_id": 0,
    "inference_runner": 0,
    "initializer_range": 0.01275,
    "layer_norm_epsilon": 1e-05,
    "max_batch_size": None,
    "max_sequence_length": None,
    "model_type": "gpt_bigcode",
    "multi_query": True,
    "n_embd": 6144,
    "n_head": 48,
    "n_inner": 24576,
    "n_layer": 2,
    "n_positions": 8192,
    "pad_key_length": True,
    "pre_allocate_kv_cache": False,
    "resid_pdrop": 0.1,
    "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "validate_runner_input": True,
    "vocab_size": 49152,
}
FAMILY = TinyFamily(
    config="GPTBigCodeConfig",
    model="GPTBigCodeForCausalLM",
    lacks=("intermediate_size", "num_key_value_heads", "rms_norm_eps"),
    # Of a tied head it would say what it read again.
    fields={"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    spread=0.05,
    cases={
        "gpt-bigcode": {},
        "gpt-bigcode-heads": {
            "multi_query": False,
            "scale_attn_weights": False,
            "activation_function": "gelu",
            "n_inner": 100,
        },
        "gpt-bigcode-48": {"hidden_size": 144, "num_attention_heads": 3},
    },
    served={"multi_query": False, "tie_word_embeddings": True},
    published=PUBLISHED,
)
