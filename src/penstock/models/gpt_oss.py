"""gpt-oss: experts with biases and a clamped SwiGLU, attention sinks, and windows on every other
layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    SLIDING,
    default_head_dim,
    every,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_layer_kinds,
    read_num_layers,
    read_positions,
    windows_of,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    DOWN,
    GATE,
    MLP,
    ROUTER,
    TRAINING,
    UP,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.names import BIAS, Name, NameMap, plain, stacked
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_parameters, read_rope, read_theta
from penstock.models.spec import ClampedSwiglu, DType, ExpertsSpec, ModelSpec, RopeSpec, Routing

ARCHITECTURE = "GptOssForCausalLM"
MODEL_TYPE = "gpt_oss"
KNOWN_AS = "gpt-oss 20B and 120B, in bfloat16 or [MXFP4](#mixtures-of-experts)"
_IN, _OUT = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain({ROUTER: f"{MLP}.router"})
    | {"layers.*.sinks": Name("model.layers.*.self_attn.sinks", suffix="")}
    | stacked(_IN, GATE, UP, kept="columns", interleaved=True, quantized=True)
    | stacked(_OUT, DOWN, kept="columns", quantized=True)
    | stacked(f"{_IN}_bias", GATE + BIAS, UP + BIAS, interleaved=True)
    | stacked(f"{_OUT}_bias", DOWN + BIAS),
    LLAMA_NAMES.idle,
)

_DEFAULTS: Final = {
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "num_experts": 128,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
}
_ROPE: Final = RopeFields(default_theta=150_000.0)
_YARN: Final = {"rope_type": "yarn", "factor": 32.0, "truncate": False}
_YARN_POSITIONS: Final = 4096
# The published files repeat two fields by other names, of which nothing reads these.
_IDLE: Final = ("experts_per_token", "initial_context_length")


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, (*TRAINING, *_IDLE))
    if read_activation(config) != "silu":
        raise config.error("hidden_act", "must be 'silu', which the clamped SwiGLU is made of")
    bias = config.boolean("attention_bias", True)
    kinds = read_layer_kinds(config, every(2, read_num_layers(config)))
    window = config.optional_integer("sliding_window")
    if SLIDING in kinds:
        window = config.integer("sliding_window")
    head_dim = default_head_dim(config)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, window),
        qkv_bias=bias,
        output_bias=bias,
        rope=_rope(config, head_dim),
    )
    model = with_attention(model, [replace(each.attention, sinks=True) for each in model.layers])
    number = read_num_experts(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=ClampedSwiglu(
            limit=config.number("swiglu_limit", 7.0, high=MAX_FACTOR),
            alpha=config.number("swiglu_alpha", 1.702, high=MAX_FACTOR),
        ),
        routing=Routing("softmax_chosen", normalize=False, bias=True),
        bias=True,
    )
    return with_experts(model, experts)


def _rope(config: ConfigReader, head_dim: int) -> RopeSpec:
    """YaRN of its own where the configuration has no parameters."""
    positions = read_positions(config)
    if config.has("rope_parameters") or config.has("rope_scaling"):
        return read_rope(config, head_dim, positions, _ROPE)
    own = ConfigReader(_YARN, config.where)
    config.raw("rope_parameters"), config.raw("rope_scaling")
    theta = read_theta(config, own)
    return read_parameters(own, head_dim, positions, _ROPE, theta=theta, original=_YARN_POSITIONS)
