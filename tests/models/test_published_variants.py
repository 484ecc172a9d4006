"""Configurations of Llama, Mistral and Qwen as models of other names publish them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.models.registry import read_spec
from penstock.models.spec import AttentionSpec, ModelSpec, RopeSpec

SHARED: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0",
    "use_cache": True,
}
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
LLAMA3: dict[str, Any] = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama-3.2-1B": LLAMA
    | {
        "attention_bias": False,
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA3,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "vicuna-7b-v1.5-16k": LLAMA
    | {
        "_name_or_path": "vicuna-7b-v1.5-16k",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "max_sequence_length": 16384,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 4.0, "type": "linear"},
        "torch_dtype": "float16",
        "vocab_size": 32000,
    },
    "deepseek-coder-6.7b": LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 16384,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 4.0, "type": "linear"},
        "rope_theta": 100000,
        "vocab_size": 32256,
    },
    "SmolLM2-135M": LLAMA
    | {
        "attention_bias": False,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "vocab_size": 49152,
    },
    "Mistral-Nemo": MISTRAL
    | {
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "vocab_size": 131072,
    },
    "Qwen2.5-7B": QWEN2
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "Qwen2.5-7B-Instruct with YaRN": QWEN2
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "type": "yarn",
        },
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
}


def _read(name: str) -> tuple[ModelSpec, AttentionSpec]:
    spec = read_spec(SHARED | PUBLISHED[name])
    return spec, spec.layers[0].attention


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_variants_are_read(name: str) -> None:
    spec, attention = _read(name)
    assert (attention.window, attention.rope is not None) == (None, True)
    assert spec.tie_embeddings == PUBLISHED[name].get("tie_word_embeddings", False)
    assert attention.qkv_bias == (spec.architecture == "Qwen2ForCausalLM")


def test_how_far_they_reach_and_what_rotates() -> None:
    spec, attention = _read("vicuna-7b-v1.5-16k")
    assert spec.max_positions == 16384
    assert attention.rope == RopeSpec(1e4, 128, "linear", 4.0)
    spec, attention = _read("Mistral-Nemo")
    assert (attention.head_dim, attention.num_heads * attention.head_dim) == (128, 4096)
    spec, attention = _read("Qwen2.5-7B-Instruct with YaRN")
    assert spec.max_positions == 131072
    assert attention.rope is not None
    assert (attention.rope.kind, attention.rope.original_max_positions) == ("yarn", 32768)
