"""A model of a GGUF file ends its text where the file's vocabulary says."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.gguf.arrays import Numbers
from penstock.models.gguf.config import GgufTensors, read_gguf_spec


def test_ends_by_field_and_by_name() -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": ["a", "</s>", "<stop>", "<|im_end|>", "<|eom_id|>", "b"],
        "tokenizer.ggml.token_type": Numbers(np.array([1, 3, 3, 1, 3, 1], np.int32)),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    tensors = GgufTensors(
        {"token_embd.weight": (6, 32)}, {"token_embd.weight": "F16"}, lambda name: None
    )
    spec = read_gguf_spec(metadata, tensors, where="model.gguf")
    assert set(spec.eos_token_ids) == {1, 2, 3, 4}
