"""Llama 4: chunks of attention, layers that do not rotate, and experts that are given shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_num_layers,
    read_rotating,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR, MAX_POSITIONS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    ROUTER,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
    together,
    with_experts,
)
from penstock.models.names import NameMap, plain
from penstock.models.position_scale import PositionScale
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import (
    AttentionSpec,
    Chunk,
    DType,
    ExpertsSpec,
    MlpSpec,
    ModelSpec,
    QkNormSpec,
    Routing,
    SharedExpertSpec,
)

ARCHITECTURE = "Llama4ForCausalLM"
MODEL_TYPE = "llama4_text"
KNOWN_AS = "the language models of Llama 4 Scout and Maverick"
_AT: Final = "model.layers.*.feed_forward"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain({f"layers.*.{name}": f"{_AT}.{name}_proj" for name in ("gate", "up", "down")})
    | plain({ROUTER: f"{_AT}.router"})
    | together(f"{_AT}.experts", transposed=True)
    | shared_names(f"{_AT}.shared_expert"),
    LLAMA_NAMES.idle,
)
IDLE: Final = frozenset({"cache_implementation", "for_llm_compressor"})
CHUNKED: Final = "chunked_attention"
_DEFAULTS: Final = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    bias, layers = config.boolean("attention_bias", False), read_num_layers(config)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=[None] * layers,
        qkv_bias=bias,
        output_bias=bias,
        rope_fields=RopeFields(default_theta=500_000.0),
    )
    model = with_attention(model, _attention(config, [each.attention for each in model.layers]))
    activation = read_activation(config)
    dense = MlpSpec(read_expert_size(config, "intermediate_size_mlp"), activation)
    model = replace(model, layers=tuple(replace(each, mlp=dense) for each in model.layers))
    named = config.raw("moe_layers") is not None
    step = config.integer("interleave_moe_layer_step", 1, low=0 if named else 1)
    chosen = config.integers("moe_layers", high=layers - 1)
    if not named:
        chosen = tuple(range(step - 1, layers, step))
    if not chosen:
        config.raw("num_experts"), config.raw("num_experts_per_tok")
        return model
    number, size = read_num_experts(config), read_expert_size(config, "intermediate_size")
    routing, shared = Routing("sigmoid", normalize=False), SharedExpertSpec(size)
    experts = ExpertsSpec(
        number, read_top_k(config, number), size, activation, routing, shared, False, "inputs"
    )
    return with_experts(model, experts, lambda i: i in chosen)


def _attention(config: ConfigReader, layers: list[AttentionSpec]) -> list[AttentionSpec]:
    """Layers that rotate attend in chunks; the others to all tokens, with queries that grow."""
    turned = read_rotating(config)
    kinds = config.texts("layer_types") or tuple(CHUNKED if each else FULL for each in turned)
    if len(kinds) != len(layers) or not set(kinds) <= {CHUNKED, FULL}:
        raise config.error("layer_types", f"must be {len(layers)} times {CHUNKED!r} or {FULL!r}")
    chunk = Chunk(config.integer("attention_chunk_size", high=MAX_POSITIONS))
    period = config.integer("floor_scale", 8192, high=MAX_POSITIONS)
    scale = PositionScale(config.number("attn_scale", 0.1, high=MAX_FACTOR), period, offset=1)
    grow = "attn_temperature_tuning"  # a number, in published files
    grows = config.raw(grow) == 4 or config.boolean(grow, True)
    normed, eps = config.boolean("use_qk_norm", True), read_norm(config).eps
    norm = QkNormSpec(eps, weight=False, after_rope=True) if normed else None
    return [
        replace(
            each,
            rope=replace(each.rope, interleaved=True) if rotates and each.rope else None,
            window=chunk if kind == CHUNKED else None,
            qk_norm=norm if rotates else None,
            position_scale=scale if grows and not rotates else None,
        )
        for each, rotates, kind in zip(layers, turned, kinds, strict=True)
    ]
