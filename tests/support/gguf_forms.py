"""GGUF files of tiny checkpoints of families whose tensors are not those of a checkpoint by other
names: latents, states, experts of several kinds. What converters do is done once more, by other
code than that which undoes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH as ARCH
from safetensors.numpy import load_file

from support.gguf_models import F32, Types, add_key, finish, floats

Config = Mapping[str, Any]
Tensors = Iterable[tuple[str, F32]]


def unchanged(name: str, values: F32, config: Config) -> Tensors:
    yield name, values


@dataclass(frozen=True)
class Form:
    """How files of a family differ from its checkpoints."""

    arch: ARCH
    keys: Mapping[str, str | Callable[[Config], Any]] = field(default_factory=dict)
    """Keys, and the fields that they are, or what makes them of a configuration."""
    change: Callable[[str, F32, Config], Tensors] = unchanged
    """Tensors in the place of one: those whose names begin with ``blk`` or ``rope_freqs`` have
    them already."""


def write_form(folder: Path, path: Path, form: Form, types: Types = floats, **keys: Any) -> Path:
    """The checkpoint in ``folder`` as a file. ``keys`` as in ``gguf_models.write_gguf``."""
    config = json.loads((folder / "config.json").read_text())
    tensors = _tensors(folder, form, config)
    name = gguf.MODEL_ARCH_NAMES[form.arch]
    writer = gguf.GGUFWriter(path, name)
    said = {
        key: config.get(made) if isinstance(made, str) else made(config)
        for key, made in {**_COMMON, **form.keys}.items()
    }
    said |= {key.replace("__", "."): value for key, value in keys.items()}
    for key, value in said.items():
        if value is not None:
            add_key(writer, key if key.startswith("xielu") else f"{name}.{key}", value)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    finish(writer, tensors, types)
    return path


def _tensors(folder: Path, form: Form, config: Config) -> dict[str, F32]:
    names = gguf.get_tensor_name_map(form.arch, layers_of(config))
    tensors: dict[str, F32] = {}
    experts: dict[str, dict[int, F32]] = {}
    for stored, raw in load_file(folder / "model.safetensors").items():
        for name, values in form.change(stored, raw.astype(np.float32), config):
            if name.startswith(("blk", "rope_freqs")):
                tensors[name] = values
                continue
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
            if found is not None:
                every = experts.setdefault(f"{found[1]}.{found[3]}", {})
                every[int(found[2])] = values
                continue
            mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert mapped is not None, name
            tensors[mapped] = values
    for name, each in experts.items():
        mapped = names.get_name(name, try_suffixes=(".weight",))
        assert mapped is not None, name
        tensors[mapped] = np.stack([each[i] for i in range(len(each))])
    return tensors


def layers_of(config: Config) -> int:
    for name in ("num_hidden_layers", "n_layer", "n_layers"):
        if name in config:
            return int(config[name])
    return len(config["layers_block_type"])


def first_of(*names: str) -> Callable[[Config], Any]:
    return lambda config: next((config[name] for name in names if config.get(name)), None)


def rope_of(config: Config) -> dict[str, Any]:
    rope: dict[str, Any] = config.get("rope_parameters") or {}
    full: dict[str, Any] = rope.get("full_attention", rope)
    return full


def _head_dim(config: Config) -> int:
    said = config.get("head_dim")
    return int(said or config["hidden_size"] // config["num_attention_heads"])


def rotating_of(config: Config) -> int:
    return int(_head_dim(config) * rope_of(config).get("partial_rotary_factor", 1.0))


_COMMON: dict[str, str | Callable[[Config], Any]] = {
    "context_length": first_of("max_position_embeddings", "n_positions", "max_seq_len"),
    "embedding_length": first_of("hidden_size", "n_embd", "d_model"),
    "block_count": layers_of,
    "attention.head_count": first_of("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": "num_key_value_heads",
    "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": first_of("rms_norm_eps", "norm_eps"),
    "rope.freq_base": lambda c: rope_of(c).get("rope_theta"),
    "expert_count": first_of("n_routed_experts", "num_local_experts", "num_experts"),
    "expert_used_count": "num_experts_per_tok",
}
