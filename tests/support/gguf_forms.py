"""GGUF files of tiny checkpoints of families whose tensors are not those of a checkpoint by other
names: latents, states, experts of several kinds. What converters do is done once more, by other
code than that which undoes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH as ARCH
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

from support.gguf_models import Types, add_key, floats, paired

F32 = NDArray[np.float32]
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
    for tensor, values in tensors.items():
        kind = types(tensor, values.shape)
        data = values if kind is Type.F32 else quantize(values, kind)
        writer.add_tensor(tensor, data, raw_dtype=None if kind is Type.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(folder: Path, form: Form, config: Config) -> dict[str, F32]:
    names = gguf.get_tensor_name_map(form.arch, _layers(config))
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


def _layers(config: Config) -> int:
    for name in ("num_hidden_layers", "n_layer", "n_layers"):
        if name in config:
            return int(config[name])
    return len(config["layers_block_type"])


def _first(*names: str) -> Callable[[Config], Any]:
    return lambda config: next((config[name] for name in names if config.get(name)), None)


def _rope(config: Config) -> dict[str, Any]:
    rope: dict[str, Any] = config.get("rope_parameters") or {}
    full: dict[str, Any] = rope.get("full_attention", rope)
    return full


def _head_dim(config: Config) -> int:
    said = config.get("head_dim")
    return int(said or config["hidden_size"] // config["num_attention_heads"])


def _rotating(config: Config) -> int:
    return int(_head_dim(config) * _rope(config).get("partial_rotary_factor", 1.0))


_COMMON: dict[str, str | Callable[[Config], Any]] = {
    "context_length": _first("max_position_embeddings", "n_positions", "max_seq_len"),
    "embedding_length": _first("hidden_size", "n_embd", "d_model"),
    "block_count": _layers,
    "attention.head_count": _first("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": "num_key_value_heads",
    "feed_forward_length": "intermediate_size",
    "attention.layer_norm_rms_epsilon": _first("rms_norm_eps", "norm_eps"),
    "rope.freq_base": lambda c: _rope(c).get("rope_theta"),
    "expert_count": _first("n_routed_experts", "num_local_experts", "num_experts"),
    "expert_used_count": "num_experts_per_tok",
}
_HEADS = {"attention.key_length": "head_dim", "attention.value_length": "head_dim"}
_ROUTING = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
}
_NO = "none"
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


def _qk(config: Config) -> int:
    return int(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])


_RANKS: dict[str, str | Callable[[Config], Any]] = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
_YARN: dict[str, str | Callable[[Config], Any]] = {
    "rope.scaling.type": lambda c: "yarn" if _rope(c)["rope_type"] == "yarn" else None,
    "rope.scaling.factor": lambda c: _rope(c).get("factor"),
    "rope.scaling.original_context_length": lambda c: _rope(c).get(
        "original_max_position_embeddings"
    ),
    "rope.scaling.yarn_beta_fast": lambda c: _rope(c).get("beta_fast"),
    "rope.scaling.yarn_beta_slow": lambda c: _rope(c).get("beta_slow"),
    "rope.scaling.yarn_log_multiplier": lambda c: (
        0.1 * _rope(c)["mscale_all_dim"] if "mscale_all_dim" in _rope(c) else None
    ),
}
DEEPSEEK = Form(
    ARCH.DEEPSEEK2,
    {
        **_RANKS,
        **_YARN,
        **_ROUTING,
        "attention.head_count_kv": lambda c: 1,
        "attention.key_length": _latent,
        "attention.value_length": "kv_lora_rank",
        "attention.key_length_mla": _qk,
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
        "attention.key_length": _qk,
        "attention.value_length": "v_head_dim",
        "attention.key_length_mla": _NO,
        "attention.value_length_mla": _NO,
    },
)
"""As files were at first, whose keys and values are made by one matrix."""


def _gates_and_ups(name: str, values: F32, config: Config) -> Tensors:
    """Experts that are stored in one tensor, ``[inputs, outputs]``."""
    if name.endswith("gate_up_proj"):
        gates, ups = np.split(values, 2, axis=-1)
        yield name.replace("gate_up_proj", "gate_proj.weight"), gates.swapaxes(1, 2)
        yield name.replace("gate_up_proj", "up_proj.weight"), ups.swapaxes(1, 2)
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", values.swapaxes(1, 2)
    else:
        yield name, values


_SCANS: dict[str, str | Callable[[Config], Any]] = {
    "ssm.conv_kernel": _first("conv_kernel", "mamba_d_conv"),
    "ssm.state_size": _first("state_size", "mamba_d_state", "ssm_state_size"),
    "ssm.group_count": _first("n_groups", "mamba_n_groups"),
    "ssm.time_step_rank": _first("mamba_n_heads", "mamba_num_heads", "num_heads"),
}


def _scan(name: str, values: F32, config: Config) -> Tensors:
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


def _in_pairs(name: str, values: F32, config: Config) -> F32:
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    return next((paired(values, config[x]) for part, x in heads.items() if part in name), values)


def _granite(name: str, values: F32, config: Config) -> Tensors:
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    shared = "_shexp" if config.get("num_local_experts") else ""
    if "shared_mlp.input_linear" in name or "block_sparse_moe.input_linear" in name:
        kind = shared if "shared" in name else "_exps"
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
            yield f"blk.{layer}.ffn_{part}{kind}.weight", half
    elif "shared_mlp.output_linear" in name:
        yield f"blk.{layer}.ffn_down{shared}.weight", values
    else:
        yield from _scan(name, _in_pairs(name, values, config), config)


def _kv_heads(config: Config) -> list[int]:
    heads, kinds = config["num_key_value_heads"], config.get("layer_types")
    kinds = kinds or config.get("layers_block_type")
    if kinds is None:
        attends = config["attn_layer_indices"]
        return [heads if i in attends else 0 for i in range(_layers(config))]
    return [heads if kind == "full_attention" else 0 for kind in kinds]


def _inner(config: Config) -> int:
    return int(config["mamba_n_heads"] * config["mamba_d_head"])


def _falcon_h1(name: str, values: F32, config: Config) -> Tensors:
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
        inner, shared = _inner(config), config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = (inner, inner, shared, shared, config["mamba_n_heads"])
        values = values * np.repeat(config["ssm_multipliers"], sizes)[:, None] * scan
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    changed = (values * factor).astype(np.float32)
    if "pre_ff_layernorm" in name:
        yield f"blk.{layer}.ffn_norm", changed
    else:
        yield from _scan(name, changed, config)


def _nemotron_widths(config: Config) -> list[int]:
    widths = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
    return [widths.get(kind, 0) for kind in config["layers_block_type"]]


def _nemotron(name: str, values: F32, config: Config) -> Tensors:
    if ".mixer.experts." in name:
        name = name.replace("backbone", "model").replace("mixer", "mlp")
    yield from _scan(name, _in_pairs(name, values, config), config)


def _net(name: str, values: F32, config: Config) -> Tensors:
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


_NETS: dict[str, str | Callable[[Config], Any]] = {
    **_HEADS,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "rope.dimension_count": _rotating,
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": lambda c: c["linear_num_value_heads"] * c["linear_value_head_dim"],
    "attention.recurrent_layers": lambda c: [k != "full_attention" for k in c["layer_types"]],
}

_SECTIONS = {"rope.dimension_sections": lambda c: [1, 1, 0, 0]}


def _full(config: Config, name: str) -> Any:
    """What layers without a window have."""
    own = (each.get(name) for each in config["per_layer_config"].values())
    return next((each for each in own if each is not None), config.get(name))


def _of_kinds(config: Config, name: str) -> list[Any]:
    kinds = config["layer_types"]
    return [_full(config, name) if k == "full_attention" else config[name] for k in kinds]


def _gemma4(name: str, values: F32, config: Config) -> Tensors:
    """Frequencies that do not rotate are divided by a number that is too large for it."""
    layer = next((part for part in name.split(".") if part.isdigit()), "")
    if name == "model.norm.weight":
        half = _full(config, "head_dim") // 2
        part = _rope(config)["partial_rotary_factor"]
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


def _joined_heads(name: str, values: F32, config: Config) -> Tensors:
    """Queries of all heads, then keys, then values, where each head has its three together."""
    if "query_key_value" in name:
        heads = config.get("num_kv_heads", config["num_attention_heads"])
        size = config["hidden_size"] // config["num_attention_heads"]
        each = values.reshape(heads, -1, size, *values.shape[1:])
        parts = (each[:, :-2], each[:, -2:-1], each[:, -1:])
        values = np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])
    yield name, values


def _lfm2(name: str, values: F32, config: Config) -> Tensors:
    if "feed_forward.experts" in name:
        name = name.replace("feed_forward", "block_sparse_moe")
    name = name.replace("feed_forward.expert_bias", "block_sparse_moe.e_score_correction_bias")
    yield name, values[:, 0] if "conv.conv" in name else values


def _without_activations(name: str, values: F32, config: Config) -> Tensors:
    if "act_fn" not in name:
        yield name, values


FORMS: dict[str, Form] = {
    "apertus": Form(
        ARCH.APERTUS,
        {f"xielu.{name}": lambda c: [0.5, 0.25] for name in ("alpha_p", "alpha_n", "beta", "eps")},
        _without_activations,
    ),
    "bamba": Form(
        ARCH.GRANITE_HYBRID,
        {
            **_SCANS,
            "attention.head_count_kv": _kv_heads,
            "rope.dimension_count": _rotating,
            "rope.scaling.finetuned": lambda c: True,
            "ssm.inner_size": _inner,
        },
        _granite,
    ),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "falcon": Form(
        ARCH.FALCON,
        {
            "attention.head_count_kv": "num_kv_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "context_length": lambda c: 256,
        },
        _joined_heads,
    ),
    "falcon_h1": Form(ARCH.FALCON_H1, {**_HEADS, **_SCANS, "ssm.inner_size": _inner}, _falcon_h1),
    "gemma4_text": Form(
        ARCH.GEMMA4,
        {
            "attention.head_count_kv": lambda c: _of_kinds(c, "num_key_value_heads"),
            "attention.key_length": lambda c: _full(c, "head_dim"),
            "attention.value_length": lambda c: _full(c, "head_dim"),
            "attention.key_length_swa": "head_dim",
            "attention.value_length_swa": "head_dim",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": lambda c: [
                kind == "sliding_attention" for kind in c["layer_types"]
            ],
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "feed_forward_length": lambda c: [
                c["intermediate_size"]
                * (1 + (i >= len(c["layer_types"]) - c["num_kv_shared_layers"]))
                if c["use_double_wide_mlp"]
                else c["intermediate_size"]
                for i in range(len(c["layer_types"]))
            ],
            "final_logit_softcapping": "final_logit_softcapping",
            "rope.dimension_count": lambda c: _full(c, "head_dim"),
            "rope.dimension_count_swa": "head_dim",
            "rope.freq_base_swa": lambda c: c["rope_parameters"]["sliding_attention"]["rope_theta"],
        },
        _gemma4,
    ),
    "glm": Form(ARCH.CHATGLM, {"rope.dimension_count": _rotating}),
    "glm4_moe": Form(ARCH.GLM4_MOE, {**_HEADS, **_ROUTING, "rope.dimension_count": _rotating}),
    "gpt_bigcode": Form(
        ARCH.STARCODER,
        {
            "attention.head_count_kv": lambda c: 1,
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "feed_forward_length": lambda c: 4 * c["n_embd"],
        },
    ),
    "gpt_neox": Form(
        ARCH.GPTNEOX,
        {
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.dimension_count": _rotating,
            "use_parallel_residual": "use_parallel_residual",
        },
        _joined_heads,
    ),
    "granitemoehybrid": Form(
        ARCH.GRANITE_HYBRID,
        {
            **_SCANS,
            "attention.head_count_kv": _kv_heads,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
            "rope.scaling.finetuned": lambda c: False,
            "ssm.inner_size": _inner,
        },
        _granite,
    ),
    "jais2": Form(ARCH.JAIS2, {**_HEADS, "attention.layer_norm_epsilon": "layer_norm_eps"}),
    "lfm2_moe": Form(
        ARCH.LFM2MOE,
        {
            "attention.head_count_kv": _kv_heads,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_gating_func": lambda c: 2,
            "leading_dense_block_count": "num_dense_layers",
            "shortconv.l_cache": "conv_L_cache",
        },
        _lfm2,
    ),
    "llama4_text": Form(
        ARCH.LLAMA4,
        {
            **_HEADS,
            "expert_feed_forward_length": "intermediate_size",
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        _gates_and_ups,
    ),
    "mamba2": Form(
        ARCH.MAMBA2,
        {
            **_SCANS,
            "attention.head_count": lambda c: 0,
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "feed_forward_length": lambda c: 0,
            "ssm.inner_size": lambda c: c["num_heads"] * c["head_dim"],
        },
        _scan,
    ),
    "minicpm3": Form(ARCH.MINICPM3, {**_RANKS, "attention.key_length": _qk}),
    "minimax_m2": Form(
        ARCH.MINIMAXM2,
        {
            **_HEADS,
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": lambda c: 2,
            "rope.dimension_count": _rotating,
        },
    ),
    "ministral3": Form(
        ARCH.MISTRAL3,
        {
            **_HEADS,
            **_YARN,
            "attention.temperature_scale": lambda c: _rope(c)["llama_4_scaling_beta"],
            "rope.scaling.yarn_log_multiplier": lambda c: _rope(c)["mscale_all_dim"],
        },
        lambda name, values, config: [(name, _in_pairs(name, values, config))],
    ),
    "mpt": Form(
        ARCH.MPT,
        {
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "attention.max_alibi_bias": lambda c: 8.0,
            "feed_forward_length": lambda c: 4 * c["d_model"],
        },
    ),
    "nemotron_h": Form(
        ARCH.NEMOTRON_H_MOE,
        {
            **_HEADS,
            **_SCANS,
            **_ROUTING,
            "attention.head_count_kv": _kv_heads,
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "feed_forward_length": _nemotron_widths,
            "rope.scaling.finetuned": lambda c: False,
            "ssm.inner_size": lambda c: c["mamba_num_heads"] * c["mamba_head_dim"],
        },
        _nemotron,
    ),
    "olmo3": Form(
        ARCH.OLMO2,
        {
            **_YARN,
            "rope.freq_base_swa": lambda c: c["rope_parameters"]["sliding_attention"]["rope_theta"],
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": lambda c: [
                kind == "sliding_attention" for kind in c["layer_types"]
            ],
        },
    ),
    "qwen3_5_moe_text": Form(
        ARCH.QWEN35MOE, {**_NETS, "rope.dimension_sections": lambda c: [1, 1, 0, 0]}, _net
    ),
    "qwen3_5_text": Form(
        ARCH.QWEN35, {**_NETS, "rope.dimension_sections": lambda c: [1, 1, 0, 0]}, _net
    ),
    "qwen3_next": Form(ARCH.QWEN3NEXT, _NETS, _net),
}
"""By the names that the families have among the tests' tiny checkpoints."""

IN_PAIRS = Form(ARCH.INTERNLM2, {}, lambda name, values, c: [(name, _in_pairs(name, values, c))])
LIKE_OTHERS: dict[str, tuple[str, Form]] = {
    "exaone": (
        "llama",
        Form(
            ARCH.EXAONE,
            {
                "attention.layer_norm_epsilon": "rms_norm_eps",
                "attention.layer_norm_rms_epsilon": _NO,
            },
        ),
    ),
    "internlm2": ("llama", IN_PAIRS),
    "minicpm": (
        "granite",
        replace(
            IN_PAIRS,
            arch=ARCH.MINICPM,
            keys={
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "logit_scale": "logits_scaling",
            },
        ),
    ),
    "qwen2vl": ("qwen2", Form(ARCH.QWEN2VL, _SECTIONS)),
    "qwen3vl": (
        "qwen3",
        Form(ARCH.QWEN3VL, {**_HEADS, **_SECTIONS, "n_deepstack_layers": lambda c: 3}),
    ),
    "qwen3vlmoe": (
        "qwen3_moe",
        Form(
            ARCH.QWEN3VLMOE,
            {**_HEADS, **_SECTIONS, "expert_feed_forward_length": "moe_intermediate_size"},
        ),
    ),
}
"""Architectures that are a family by another name, which the tests have checkpoints of."""
