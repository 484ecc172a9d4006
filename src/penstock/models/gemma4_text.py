"""Gemma 4, the language model: heads by kind of layer, shared keys, inputs by token, experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models import gemma4_experts, gemma4_layers, gemma4_names
from penstock.models.blocks import read_activation, read_mlp, read_model, read_norm, read_positions
from penstock.models.limits import MAX_FACTOR, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_VOCAB
from penstock.models.names import NameMap
from penstock.models.reader import ConfigReader
from penstock.models.spec import (
    DType,
    EmbeddingScale,
    LayerSpec,
    ModelSpec,
    NormSpec,
    TokenInputsSpec,
)

ARCHITECTURE = "Gemma4ForCausalLM"
MODEL_TYPE = "gemma4_text"
KNOWN_AS = "the language models of Gemma 4"
IDLE: Final = frozenset({"num_experts", "top_k_experts", "moe_intermediate_size"})
"""Fields of experts, where there are none."""

_DEFAULTS: Final = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262_144,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    if config.has("use_bidirectional_attention"):
        config.only("use_bidirectional_attention", "vision", "must not be all: only causal models")
    config.raw("use_bidirectional_attention")
    kinds, norm = gemma4_layers.read_kinds(config), read_norm(config)
    sources = gemma4_layers.read_sources(config, kinds)
    wide = config.boolean("use_double_wide_mlp", False)
    mlp = read_mlp(config, activation="hidden_activation")
    double = replace(mlp, intermediate_size=2 * mlp.intermediate_size)
    attention = gemma4_layers.read_attentions(config, kinds, norm)
    both = [double if wide and source is not None else mlp for source in sources]
    mlps = gemma4_experts.read_mlps(config, both, norm)
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[
            LayerSpec(
                replace(own, kv_from=source),
                made,
                attn_norm=norm,
                mlp_norm=norm,
                attn_post_norm=norm,
                mlp_post_norm=norm,
                output_scale=True,
            )
            for own, source, made in zip(attention, sources, mlps, strict=True)
        ],
        final_norm=norm,
        max_positions=read_positions(config),
        tie_embeddings=True,
    )
    readers = "|".join(str(i) for i, source in enumerate(sources) if source is not None)
    cap = config.optional_number("final_logit_softcapping", low=0.0, high=MAX_FACTOR)
    return replace(
        model,
        embedding_scale=EmbeddingScale(math.sqrt(model.hidden_size), rounded=True),
        logits_softcap=cap or None,
        token_inputs=_token_inputs(config, model, norm),
        # Published files have keys and values of layers that read those of others, too.
        names=NameMap(
            gemma4_names.NAMES, rf".*\.layers\.({readers})\.self_attn\.[kv]_(proj|norm)\.weight"
        ),
    )


def _token_inputs(config: ConfigReader, model: ModelSpec, norm: NormSpec) -> TokenInputsSpec | None:
    most = MAX_INTERMEDIATE // len(model.layers)
    size = config.integer("hidden_size_per_layer_input", low=0, high=min(most, MAX_HIDDEN))
    rows = config.integer("vocab_size_per_layer_input", high=MAX_VOCAB)
    if not size:
        return None
    if rows < model.vocab_size:
        raise config.error("vocab_size_per_layer_input", f"is less than the {model.vocab_size} ids")
    return TokenInputsSpec(
        size=size,
        vocab_size=rows,
        activation=read_activation(config, "hidden_activation"),
        eps=norm.eps,
        factor=math.sqrt(size),
        projection_scale=model.hidden_size**-0.5,
        scale=2.0**-0.5,
    )
