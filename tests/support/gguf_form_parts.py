"""What forms of GGUF files share: keys of their metadata, and changes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import MODEL_ARCH as ARCH

from support.gguf_forms import Config, Form, Tensors, first_of, layers_of, rope_of, rotating_of
from support.gguf_models import F32, paired

HEADS = {"attention.key_length": "head_dim", "attention.value_length": "head_dim"}
ROUTING = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
}
NO = "none"
"""A field that no configuration has."""


def _split_latents(name: str, values: F32, config: Config) -> Tensors:
    if "kv_b_proj" not in name:
        yield name, values
        return
    nope, size = config["qk_nope_head_dim"], config["v_head_dim"]
    keys, ups = [], []
    for head in range(config["num_attention_heads"]):
        rows = values[head * (nope + size) : (head + 1) * (nope + size)]
        keys.append(rows[:nope].T)
        ups.append(rows[nope:])
    yield name.replace("kv_b_proj", "k_b_proj"), np.stack(keys)
    yield name.replace("kv_b_proj", "v_b_proj"), np.stack(ups)


def _latent(config: Config) -> int:
    return int(config["kv_lora_rank"] + config["qk_rope_head_dim"])


def qk_of(config: Config) -> int:
    return int(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])


RANKS: dict[str, str | Callable[[Config], Any]] = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
YARN: dict[str, str | Callable[[Config], Any]] = {
    "rope.scaling.type": lambda c: "yarn" if rope_of(c)["rope_type"] == "yarn" else None,
    "rope.scaling.factor": lambda c: rope_of(c).get("factor"),
    "rope.scaling.original_context_length": lambda c: rope_of(c).get(
        "original_max_position_embeddings"
    ),
    "rope.scaling.yarn_beta_fast": lambda c: rope_of(c).get("beta_fast"),
    "rope.scaling.yarn_beta_slow": lambda c: rope_of(c).get("beta_slow"),
    "rope.scaling.yarn_log_multiplier": lambda c: (
        0.1 * rope_of(c)["mscale_all_dim"] if "mscale_all_dim" in rope_of(c) else None
    ),
}
DEEPSEEK = Form(
    ARCH.DEEPSEEK2,
    {
        **RANKS,
        **YARN,
        **ROUTING,
        "attention.head_count_kv": lambda c: 1,
        "attention.key_length": _latent,
        "attention.value_length": "kv_lora_rank",
        "attention.key_length_mla": qk_of,
        "attention.value_length_mla": "v_head_dim",
        "expert_gating_func": lambda c: 2 if c["model_type"] == "deepseek_v3" else 1,
    },
    _split_latents,
)
DEEPSEEK_BEFORE = Form(
    ARCH.DEEPSEEK2,
    {
        **DEEPSEEK.keys,
        "attention.head_count_kv": "num_attention_heads",
        "attention.key_length": qk_of,
        "attention.value_length": "v_head_dim",
        "attention.key_length_mla": NO,
        "attention.value_length_mla": NO,
    },
)
"""As files were at first, whose keys and values are made by one matrix."""


def gates_and_ups(name: str, values: F32, config: Config) -> Tensors:
    """Experts that are stored in one tensor, ``[inputs, outputs]``."""
    if name.endswith("gate_up_proj"):
        gates, ups = np.split(values, 2, axis=-1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gates.swapaxes(1, 2)
        yield name.replace("gate_up_proj", "up_proj.weight"), ups.swapaxes(1, 2)
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", values.swapaxes(1, 2)
    else:
        yield name, values


SCANS: dict[str, str | Callable[[Config], Any]] = {
    "ssm.conv_kernel": first_of("conv_kernel", "mamba_d_conv"),
    "ssm.state_size": first_of("state_size", "mamba_d_state", "ssm_state_size"),
    "ssm.group_count": first_of("n_groups", "mamba_n_groups"),
    "ssm.time_step_rank": first_of("mamba_n_heads", "mamba_num_heads", "num_heads"),
}


def scan_tensors(name: str, values: F32, config: Config) -> Tensors:
    groups = config.get("n_groups", config.get("mamba_n_groups"))
    if name.endswith("A_log"):
        yield name, -np.exp(values)[:, None]
    elif name.endswith(".D"):
        yield name, values[:, None]
    elif "conv1d.weight" in name:
        yield name, values[:, 0]
    elif name.endswith("dt_bias"):
        yield name.replace("dt_bias", "dt_proj.bias"), values
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        yield name, values.reshape(groups, -1)
    else:
        yield name, values


def in_pairs(name: str, values: F32, config: Config) -> F32:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    return next((paired(values, config[x]) for part, x in heads.items() if part in name), values)


def granite_tensors(name: str, values: F32, config: Config) -> Tensors:
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    shared = "_shexp" if config.get("num_local_experts") else ""
    if "shared_mlp.input_linear" in name or "block_sparse_moe.input_linear" in name:
        kind = shared if "shared" in name else "_exps"
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
            yield f"blk.{layer}.ffn_{part}{kind}.weight", half
    elif "shared_mlp.output_linear" in name:
        yield f"blk.{layer}.ffn_down{shared}.weight", values
    else:
        yield from scan_tensors(name, in_pairs(name, values, config), config)


def kv_heads_of(config: Config) -> list[int]:
    heads, kinds = config["num_key_value_heads"], config.get("layer_types")
    kinds = kinds or config.get("layers_block_type")
    if kinds is None:
        attends = config["attn_layer_indices"]
        return [heads if i in attends else 0 for i in range(layers_of(config))]
    return [heads if kind == "full_attention" else 0 for kind in kinds]


def inner_of(config: Config) -> int:
    return int(config["mamba_n_heads"] * config["mamba_d_head"])


def falcon_h1_tensors(name: str, values: F32, config: Config) -> Tensors:
    """Factors are multiplied into the weights that they are of."""
    given, scan = config["attention_in_multiplier"], config["ssm_in_multiplier"]
    gate, down = config["mlp_multipliers"]
    by = {
        "gate_proj": gate,
        "down_proj": down,
        "q_proj": given,
        "k_proj": given * config["key_multiplier"],
        "v_proj": given,
        "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    factor = next((by[part] for part in by if f"{part}.weight" in name), 1.0)
    if "mamba.in_proj" in name:
        inner, shared = inner_of(config), config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
        values = values * np.repeat(config["ssm_multipliers"], sizes)[:, None] * scan
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    changed = (values * factor).astype(np.float32)
    if "pre_ff_layernorm" in name:
        yield f"blk.{layer}.ffn_norm", changed
    else:
        yield from scan_tensors(name, changed, config)


def nemotron_widths(config: Config) -> list[int]:
    widths = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
    return [widths.get(kind, 0) for kind in config["layers_block_type"]]


def nemotron_tensors(name: str, values: F32, config: Config) -> Tensors:
    if ".mixer.experts." in name:
        name = name.replace("backbone", "model").replace("mixer", "mlp")
    yield from scan_tensors(name, in_pairs(name, values, config), config)


def net_tensors(name: str, values: F32, config: Config) -> Tensors:
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size, width = config["linear_key_head_dim"], config["linear_value_head_dim"]
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    net = name.partition("linear_attn.")[2]
    if name.endswith("norm.weight") and not net:
        values = values + np.float32(1)
    if net == "in_proj_qkvz.weight":
        each = values.reshape(keys, -1, values.shape[1])
        ends = np.cumsum([size, size, heads // keys * width])
        parts = [part.reshape(-1, values.shape[1]) for part in np.split(each, ends, axis=1)]
        yield f"blk.{layer}.attn_qkv.weight", np.concatenate(parts[:3])
        yield f"blk.{layer}.attn_gate.weight", parts[3]
        return
    if net == "conv1d.weight":
        values = values[:, 0]
    if net == "A_log":
        values = -np.exp(values)
    if net and config["model_type"].startswith("qwen3_5"):
        values = _tiled(net, values, config)
    yield name.replace("dt_bias", "dt_proj.bias"), values


def _tiled(name: str, values: F32, config: Config) -> F32:
    """The first value head of each key head, then the second of each."""
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width, first = config["linear_value_head_dim"], 2 * keys * config["linear_key_head_dim"]

    def rows(x: F32) -> F32:
        size = len(x) // heads
        order = [head for j in range(heads // keys) for head in range(j, heads, heads // keys)]
        return np.concatenate([x[head * size : (head + 1) * size] for head in order])

    if name in ("in_proj_qkv.weight", "conv1d.weight"):
        return np.concatenate([values[:first], rows(values[first:])])
    if name == "out_proj.weight":
        return np.ascontiguousarray(rows(values.T).T)
    assert width
    return values if name == "norm.weight" else rows(values)


NETS: dict[str, str | Callable[[Config], Any]] = {
    **HEADS,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "rope.dimension_count": rotating_of,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": lambda c: c["linear_num_value_heads"] * c["linear_value_head_dim"],
    "attention.recurrent_layers": lambda c: [k != "full_attention" for k in c["layer_types"]],
}

SECTIONS = {"rope.dimension_sections": lambda c: [1, 1, 0, 0]}


def full_of(config: Config, name: str) -> Any:
    """What layers without a window have."""
    own = (each.get(name) for each in config["per_layer_config"].values())
    return next((each for each in own if each is not None), config.get(name))


def of_kinds(config: Config, name: str) -> list[Any]:
    kinds = config["layer_types"]
    return [full_of(config, name) if k == "full_attention" else config[name] for k in kinds]


def gemma4_tensors(name: str, values: F32, config: Config) -> Tensors:
    """Frequencies that do not rotate are divided by a number that is too large for it."""
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    if name == "model.norm.weight":
        half = full_of(config, "head_dim") // 2
        part = rope_of(config)["partial_rotary_factor"]
        yield (
            "rope_freqs.weight",
            np.where(np.arange(half) < int(part * half), 1, 1e30).astype("f4"),
        )
    if name.endswith("router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", values
    elif name.endswith("per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", values
    else:
        more = ".weight" if name.endswith(("layer_scalar", "_proj")) else ""
        yield name + more, values


def joined_heads(name: str, values: F32, config: Config) -> Tensors:
    """Queries of all heads, then keys, then values, where each head has its three together."""
    if "query_key_value" in name:
        heads = config.get("num_kv_heads", config["num_attention_heads"])
        size = config["hidden_size"] // config["num_attention_heads"]
        each = values.reshape(heads, -1, size, *values.shape[1:])
        parts = (each[:, :-2], each[:, -2:-1], each[:, -1:])
        values = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    yield name, values


def lfm2_tensors(name: str, values: F32, config: Config) -> Tensors:
    if "feed_forward.experts" in name:
        name = name.replace("feed_forward", "block_sparse_moe")
    name = name.replace("feed_forward.expert_bias", "block_sparse_moe.e_score_correction_bias")
    yield name, values[:, 0] if "conv.conv" in name else values


def without_activations(name: str, values: F32, config: Config) -> Tensors:
    if "act_fn" not in name:
        yield name, values
