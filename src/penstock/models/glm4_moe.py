"""GLM-4.5 and 4.6: experts that are routed as DeepSeek V3's are, beside one for every token."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    uniform_windows,
)
from penstock.models.limits import MAX_LAYERS
from penstock.models.mixtures import (
    CHOICE_BIAS,
    MLP,
    QWEN_NAMES,
    TRAINING,
    read_corrected_routing,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
    with_experts,
)
from penstock.models.names import Name, NameMap
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, SharedExpertSpec

ARCHITECTURE = "Glm4MoeForCausalLM"
MODEL_TYPE = "glm4_moe"
KNOWN_AS = "GLM-4.5, 4.5-Air and 4.6, in bfloat16"
NAMES: Final = NameMap(
    dict(QWEN_NAMES.names)
    | shared_names(f"{MLP}.shared_experts")
    | {CHOICE_BIAS: Name(f"{MLP}.gate.e_score_correction_bias", suffix="")},
    QWEN_NAMES.idle,
)

_FIELDS: Final = {"num_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
_DEFAULTS: Final = {
    "max_position_embeddings": 131072,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS, TRAINING)
    config.only("mlp_bias", False, "must be false: GLM-4.5 has no MLP biases")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("attention_bias", False),
        qk_norm=config.boolean("use_qk_norm", False),
        rope_fields=RopeFields(default_partial=0.5),
    )
    number = read_num_experts(config)
    top_k = read_top_k(config, number)
    size, shared = read_expert_size(config), config.integer("n_shared_experts", 1)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=top_k,
        intermediate_size=size,
        activation=read_activation(config),
        routing=read_corrected_routing(config, number, top_k),
        shared=SharedExpertSpec(size * shared),
    )
    dense = config.integer("first_k_dense_replace", 1, low=0)
    model = with_experts(model, experts, lambda i: i >= dense)
    return replace(model, names=_names(len(model.layers), config))


def _names(layers: int, config: ConfigReader) -> NameMap:
    """Layers behind the last predict further tokens at once, and are left out."""
    said = config.optional_integer("num_mtp_layers", low=0, high=MAX_LAYERS)
    more = 1 if said is None else said
    behind = "|".join(str(layers + i) for i in range(more))
    return replace(
        NAMES, idle=rf"{NAMES.idle}|model\.layers\.({behind})\..*" if more else NAMES.idle
    )
