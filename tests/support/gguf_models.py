"""GGUF files of tiny Hugging Face checkpoints, written with the ``gguf`` package.

The names of tensors are those that the package maps a checkpoint's to, and what converters do to
values is done here once more, by other code than that which undoes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import NVFP4, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

from penstock.models.spec import ModelSpec
from penstock.plan.lower import lower
from penstock.weights.checkpoint import CheckpointWeights

F32 = NDArray[np.float32]
Types = Callable[[str, tuple[int, ...]], Type]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "phi": gguf.MODEL_ARCH.PHI2,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
}
SAID: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "gemma2": {"query_pre_attn_scalar": 16, "head_dim": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "head_dim": 16},
    "qwen3_moe": {"norm_topk_prob": True},
    "cohere": {"tie_word_embeddings": True},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
}
"""Fields of tiny checkpoints, by family, without which a file could not say what they are."""
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Parameters of a rotation."""

_PAIRED = ("llama", "mistral", "mixtral", "granite", "smollm3")
_LAYER_NORMS = ("norm_epsilon", "layer_norm_eps")


def floats(name: str, shape: tuple[int, ...]) -> Type:
    return Type.F32


def mixed(name: str, shape: tuple[int, ...]) -> Type:
    """Matrices in several formats of blocks, side by side as in files of llama.cpp."""
    if len(shape) == 1 or "ffn_gate_inp" in name or shape[-1] % 32:
        return Type.F32
    kinds = {"attn_v": Type.Q8_0, "attn_q": Type.Q5_0, "ffn_down": Type.Q4_1, "token": Type.Q8_0}
    return next((kind for part, kind in kinds.items() if part in name), Type.Q4_0)


def write_gguf(
    folder: Path,
    path: Path,
    types: Types = floats,
    tokenizer: tuple[str, list[str]] | None = None,
    change: Callable[[dict[str, F32]], dict[str, F32]] = dict,
    **keys: Any,
) -> Path:
    """The checkpoint in ``folder`` as a file, each tensor of the type that ``types`` says.

    ``tokenizer``: what kind of vocabulary the file has, and its tokens; all are control tokens.
    ``change`` makes the file's tensors of those that a converter would write, as floats.

    ``keys`` are further ones of the architecture, with ``__`` for a dot; None takes one away.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = change(converted(folder, config))
    arch = ARCHITECTURES[folder_family(config)]
    name = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, name)
    fields = {**_fields(config), **{k.replace("__", "."): v for k, v in keys.items()}}
    for key, value in fields.items():
        if value is not None and not (key == "attention.sliding_window" and value == 0):
            add_key(writer, f"{name}.{key}", value)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer[0])
        writer.add_token_list(tokenizer[1])
        writer.add_token_types([gguf.TokenType.CONTROL] * len(tokenizer[1]))
    finish(writer, tensors, types)
    return path


def finish(writer: gguf.GGUFWriter, tensors: Mapping[str, F32], types: Types) -> None:
    """Write the file that ``writer`` has the keys of, each tensor of its type."""
    for tensor, values in tensors.items():
        kind = types(tensor, values.shape)
        data = values if kind is Type.F32 else rounded(values, kind)
        writer.add_tensor(tensor, data, raw_dtype=None if kind is Type.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(values: F32, kind: Type) -> NDArray[np.uint8]:
    """Values in blocks of a type: also of NVFP4, which the package only reads."""
    if kind is not Type.NVFP4:
        blocks: NDArray[np.uint8] = quantize(values, kind)
        return blocks
    groups = values.reshape(*values.shape[:-1], -1, 4, 16)
    scales = NVFP4.fp32_to_ue4m3(np.abs(groups).max(axis=-1) / 6)
    halved = np.maximum(NVFP4.ue4m3_to_fp32(scales), np.float32(2**-10))
    points = np.array(NVFP4.kvalues, np.float32)
    codes = np.abs(groups[..., None] / halved[..., None, None] - points).argmin(axis=-1)
    pairs = (codes[..., :8] | codes[..., 8:] << 4).astype(np.uint8)
    joined = np.concatenate([scales, pairs.reshape(*scales.shape[:-1], 32)], axis=-1)
    return joined.reshape(*values.shape[:-1], -1)


def weights_of(path: Path, spec: ModelSpec) -> CheckpointWeights:
    """The weights of a file, or of the checkpoint that it was made of, in float32."""
    plan = lower(replace(spec, dtype="float32"), "float32")
    return CheckpointWeights(path, spec, plan.weights, "float32")


def folder_family(config: Mapping[str, Any]) -> str:
    return str(config["model_type"]).removesuffix("_text")


def converted(folder: Path, config: Mapping[str, Any]) -> dict[str, F32]:
    """The tensors of a checkpoint by their names in GGUF."""
    family = folder_family(config)
    names = gguf.get_tensor_name_map(ARCHITECTURES[family], config["num_hidden_layers"])
    stored = {k: v.astype(np.float32) for k, v in load_file(folder / "model.safetensors").items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors: dict[str, F32] = {}
    experts: dict[str, dict[int, F32]] = {}
    for name, values in stored.items():
        if family in _PAIRED:
            if "q_proj" in name:
                values = paired(values, heads)
            if "k_proj" in name:
                values = paired(values, kv_heads)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        before, found, rest = name.partition(".experts.")
        if found:
            number, _, matrix = rest.partition(".")
            experts.setdefault(f"{before}.experts.{matrix}", {})[int(number)] = values
            continue
        tensors[_mapped(names, name)] = values
    for name, each in experts.items():
        tensors[_mapped(names, name)] = np.stack([each[i] for i in range(len(each))])
    return tensors


def _mapped(names: gguf.TensorNameMap, name: str) -> str:
    mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert mapped is not None, name
    return mapped


def paired(values: F32, heads: int) -> F32:
    """Rows i and i + half of each head side by side."""
    result = np.empty_like(values)
    size = len(values) // heads
    for head in range(heads):
        first = head * size
        for i in range(size // 2):
            result[first + 2 * i] = values[first + i]
            result[first + 2 * i + 1] = values[first + size // 2 + i]
    return result


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    fields = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": next(
            (config[name] for name in _LAYER_NORMS if name in config), None
        ),
        "rope.freq_base": rope["rope_theta"],
        "attention.sliding_window": config.get("sliding_window"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.sliding_window_pattern": _windows(config),
        "expert_count": config.get("num_local_experts", config.get("num_experts")),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "attention.scale": config.get("attention_multiplier"),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling", config.get("logit_scale")),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _windows(config: Mapping[str, Any]) -> list[bool] | None:
    """Which layers have a window, where not all have and not by the usual pattern."""
    kinds = config.get("layer_types") or []
    usual = [bool((i + 1) % 6) for i in range(len(kinds))]
    windows = [kind == "sliding_attention" for kind in kinds]
    return windows if any(windows) and windows != usual else None


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
