"""MiniMax M2: experts by sigmoids, and norms over all queries and over all keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_norm,
    uniform_windows,
    with_attention,
)
from penstock.models.mixtures import (
    BLOCK,
    CHOICE_BIAS,
    MIXTRAL_NAMES,
    MLP,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.names import Name, NameMap, either
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, QkNormSpec, Routing

ARCHITECTURE = "MiniMaxM2ForCausalLM"
MODEL_TYPE = "minimax_m2"
KNOWN_AS = "MiniMax M2, in bfloat16"
NAMES: Final = NameMap(
    dict(MIXTRAL_NAMES.names)
    | either(
        {CHOICE_BIAS: Name(f"{BLOCK}.e_score_correction_bias", suffix="")},
        {CHOICE_BIAS: Name(f"{MLP}.e_score_correction_bias", suffix="")},
    ),
    MIXTRAL_NAMES.idle,
)

_DEFAULTS: Final[dict[str, object]] = {
    "head_dim": 128,
    "max_position_embeddings": 196608,
    "num_key_value_heads": 8,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-6,
}
# Fields of other models of the maker: nothing reads them here, or they have one value.
_IDLE: Final = (
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "max_model_len",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "shared_moe_mode",
    "use_mtp",
)
_ONLY: Final = (
    ("attention_bias", False),
    ("qk_norm_type", "per_layer"),
    ("scoring_func", "sigmoid"),
    ("shared_intermediate_size", 0),
    ("sliding_window", None),
    ("use_qk_norm", True),
    ("use_routing_bias", True),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    defaults = dict(_DEFAULTS)
    head_dim = config.integer("head_dim", 128)
    turned = config.optional_integer("rotary_dim", high=head_dim)
    if turned is not None:
        defaults["partial_rotary_factor"] = turned / head_dim
    config = config.adapted({"num_experts": "num_local_experts"}, defaults, (*TRAINING, *_IDLE))
    for name, value in _ONLY:
        config.only(name, value, f"must be {value!r}: other forms are not supported")
    kinds = config.raw("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != 1 for kind in kinds)):
        raise config.error("attn_type_list", "must be 1 for every layer: attention to all tokens")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        rope_fields=RopeFields(default_theta=5e6, default_partial=1.0),
    )
    norm = QkNormSpec(read_norm(config).eps, over="projection")
    model = with_attention(model, [replace(each.attention, qk_norm=norm) for each in model.layers])
    number = read_num_experts(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
        routing=Routing("sigmoid", choice_bias=True),
    )
    return with_experts(model, experts)
