"""Llama 4, the language model: chunks of attention, layers without rotation, and experts that are
given shares of a token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_num_layers,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR, MAX_HEAD_DIM, MAX_LAYERS, MAX_POSITIONS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    DOWN,
    GATE,
    ROUTER,
    TRAINING,
    UP,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
)
from penstock.models.names import NameMap, plain, stacked
from penstock.models.position_scale import PositionScale
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import (
    AttentionSpec,
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
    | stacked(f"{_AT}.experts.gate_up_proj", GATE, UP, transposed=True)
    | stacked(f"{_AT}.experts.down_proj", DOWN, transposed=True)
    | shared_names(f"{_AT}.shared_expert"),
    LLAMA_NAMES.idle,
)
IDLE: Final = frozenset({"cache_implementation", "for_llm_compressor"})

CHUNKED: Final = "chunked_attention"
_DEFAULTS: Final = {
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    bias, layers = config.boolean("attention_bias", False), read_num_layers(config)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=config.integer("head_dim", high=MAX_HEAD_DIM),
        num_kv_heads=read_kv_heads(config),
        windows=[None] * layers,
        qkv_bias=bias,
        output_bias=bias,
        rope_fields=RopeFields(default_theta=500_000.0),
    )
    model = with_attention(model, _attention(config, [each.attention for each in model.layers]))
    activation, number = read_activation(config), read_num_experts(config)
    size = read_expert_size(config, "intermediate_size")
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=size,
        activation=activation,
        routing=Routing("sigmoid", normalize=False),
        shared=SharedExpertSpec(size),
        shares_on="inputs",
    )
    dense = MlpSpec(read_expert_size(config, "intermediate_size_mlp"), activation)
    step = config.integer("interleave_moe_layer_step", 1, high=MAX_LAYERS)
    chosen: Collection[int] = range(step - 1, layers, step)
    if config.raw("moe_layers") is not None:
        chosen = config.integers("moe_layers", high=layers - 1)
    mixed = (experts if i in chosen else dense for i in range(layers))
    pairs = zip(model.layers, mixed, strict=True)
    return replace(model, layers=tuple(replace(layer, mlp=mlp) for layer, mlp in pairs))


def _attention(config: ConfigReader, layers: list[AttentionSpec]) -> list[AttentionSpec]:
    """Layers that rotate attend in chunks; the others attend to all tokens, with queries that grow
    with their position."""
    turned = _rotated(config, len(layers))
    kinds = config.texts("layer_types") or tuple(CHUNKED if each else FULL for each in turned)
    if len(kinds) != len(layers) or not set(kinds) <= {CHUNKED, FULL}:
        raise config.error("layer_types", f"must be {len(layers)} times {CHUNKED!r} or {FULL!r}")
    chunk = config.integer("attention_chunk_size", high=MAX_POSITIONS)
    norm = scale = None
    if config.boolean("use_qk_norm", True):
        norm = QkNormSpec(read_norm(config).eps, weight=False, after_rope=True)
    beta = config.number("attn_scale", 0.1, high=MAX_FACTOR)
    period = config.integer("floor_scale", 8192, high=MAX_POSITIONS)
    if _tuned(config):
        scale = PositionScale(beta, period, offset=1)
    result = []
    for each, rotates, kind in zip(layers, turned, kinds, strict=True):
        assert each.rope is not None
        result.append(
            replace(
                each,
                rope=replace(each.rope, interleaved=True) if rotates else None,
                chunk=chunk if kind == CHUNKED else None,
                qk_norm=norm if rotates else None,
                position_scale=None if rotates else scale,
            )
        )
    return result


def _rotated(config: ConfigReader, layers: int) -> list[bool]:
    """Which layers rotate: those with a 1 in ``no_rope_layers``, else all but every fourth."""
    interval = config.integer("no_rope_layer_interval", 4, high=MAX_LAYERS)
    given = config.integers("no_rope_layers", high=1)
    if not given:
        return [(i + 1) % interval != 0 for i in range(layers)]
    if len(given) < layers:
        raise config.error("no_rope_layers", f"must have a 0 or 1 for each of {layers} layers")
    return [each == 1 for each in given[:layers]]


def _tuned(config: ConfigReader) -> bool:
    """Published files have a number in the place of true."""
    name = "attn_temperature_tuning"
    if isinstance(config.raw(name), int) and not isinstance(config.raw(name), bool):
        return config.integer(name, low=0) > 0
    return config.boolean(name, True)
