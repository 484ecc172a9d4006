"""Tiny random heads in the forms that Medusa and EAGLE are published in, for a Llama of tests.

    folder = write_heads(tmp_path, EAGLE3, eagle3_arrays())

Names, shapes, types and configurations are the published ones. Weights keep the size of what they
are multiplied with. Queries and keys are smaller: EAGLE 1 has no norm before attention, and scores
in the tens would tell of nothing but the rounding of bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from support.checkpoints import VOCAB, tiny_checkpoint

Arrays = dict[str, NDArray[Any]]

HIDDEN, INNER, HEADS, KV_HEADS = 64, 100, 4, 2
DRAFT_VOCAB = 120
TARGET_LAYERS = 7
"""So that the layers that EAGLE 3 taps by default, (2, 3, 4), are three."""

MEDUSA: dict[str, Any] = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 3,
    "medusa_num_layers": 1,
    "transformers_version": "4.33.2",
    "version": "2",
}
EAGLE1: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bias": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.32.0.dev0",
    "use_cache": True,
    "vocab_size": VOCAB,
}
EAGLE3: dict[str, Any] = {
    **{k: v for k, v in EAGLE1.items() if k != "bias"},
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "draft_vocab_size": DRAFT_VOCAB,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def target_folder(**overrides: Any) -> Path:
    """The model that the heads draft for."""
    return tiny_checkpoint("llama", num_hidden_layers=TARGET_LAYERS, **overrides)


def medusa_arrays(heads: int = 3, blocks: int = 1, seed: int = 0) -> Arrays:
    make = _Random(seed)
    arrays: Arrays = {}
    for h in range(heads):
        for b in range(blocks):
            arrays[f"{h}.{b}.linear.weight"] = make.matrix(HIDDEN, HIDDEN)
            arrays[f"{h}.{b}.linear.bias"] = make.vector(HIDDEN, 0.0)
        arrays[f"{h}.{blocks}.weight"] = make.matrix(VOCAB, HIDDEN)
    return arrays


def eagle1_arrays(bias: bool = True, embed: bool = True, seed: int = 0) -> Arrays:
    make = _Random(seed)
    arrays = {"fc.weight": make.matrix(HIDDEN, 2 * HIDDEN)}
    if bias:
        arrays["fc.bias"] = make.vector(HIDDEN, 0.0)
    if embed:
        arrays["embed_tokens.weight"] = make.matrix(VOCAB, HIDDEN)
    return arrays | _layer(make, "layers.0.", HIDDEN)


def eagle3_arrays(
    embed: bool = False, taps: int = 3, at: str = "midlayer.", seed: int = 0
) -> Arrays:
    make = _Random(seed)
    arrays: Arrays = {"fc.weight": make.matrix(HIDDEN, taps * HIDDEN)}
    if embed:
        arrays["embed_tokens.weight"] = make.matrix(VOCAB, HIDDEN)
    arrays |= _layer(make, at, 2 * HIDDEN)
    for name in ("hidden_norm", "input_layernorm"):
        arrays[f"{at}{name}.weight"] = make.vector(HIDDEN, 1.0)
    arrays["norm.weight"] = make.vector(HIDDEN, 1.0)
    arrays["lm_head.weight"] = make.matrix(DRAFT_VOCAB, HIDDEN)
    tokens = np.sort(make.generator.choice(VOCAB, DRAFT_VOCAB, replace=False))
    arrays["d2t"] = tokens.astype(np.int64) - np.arange(DRAFT_VOCAB)
    arrays["t2d"] = np.isin(np.arange(VOCAB), tokens)
    return arrays


def write_heads(
    folder: Path,
    config: Mapping[str, Any],
    arrays: Arrays,
    file: str = "model.safetensors",
    prefix: str = "",
    dtype: Any = np.float32,
) -> Path:
    """A folder with config.json and one file of weights; names without a place get ``prefix``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {
        name if name.startswith(("lm_head", "d2t", "t2d")) else prefix + name: (
            array.astype(dtype) if array.dtype == np.float32 else array
        )
        for name, array in arrays.items()
    }
    if file.endswith(".safetensors"):
        save_file(stored, folder / file)
    else:
        import torch

        def tensor(array: NDArray[Any]) -> Any:
            if array.dtype.name == "bfloat16":
                return torch.from_numpy(array.astype(np.float32)).bfloat16()
            return torch.from_numpy(array)

        torch.save({name: tensor(array) for name, array in stored.items()}, folder / file)
    return folder


class _Random:
    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def matrix(self, rows: int, cols: int) -> NDArray[np.float32]:
        return (
            1.5 / np.float32(cols**0.5) * self.generator.standard_normal((rows, cols), np.float32)
        )

    def vector(self, size: int, mean: float) -> NDArray[np.float32]:
        return np.float32(mean) + 0.2 * self.generator.standard_normal(size, np.float32)


def _layer(make: _Random, at: str, read: int) -> Arrays:
    dim = HIDDEN // HEADS
    shapes: dict[str, tuple[int, int]] = {
        "self_attn.q_proj": (HEADS * dim, read),
        "self_attn.k_proj": (KV_HEADS * dim, read),
        "self_attn.v_proj": (KV_HEADS * dim, read),
        "self_attn.o_proj": (HIDDEN, HEADS * dim),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    arrays = {f"{at}{name}.weight": make.matrix(*shape) for name, shape in shapes.items()}
    for name in ("q_proj", "k_proj"):
        arrays[f"{at}self_attn.{name}.weight"] *= np.float32(0.4)
    return arrays | {f"{at}post_attention_layernorm.weight": make.vector(HIDDEN, 1.0)}
