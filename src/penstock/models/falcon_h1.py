"""Falcon-H1: Llama with a selective scan (Mamba 2) beside attention in every layer, and factors of
what most products make."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.bamba import NAMES as BAMBA_NAMES
from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_kv_heads,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.factors import read_factor, read_factors, read_input_factor
from penstock.models.name_forms import OneColumn, Times
from penstock.models.names import Name
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.selective import MAMBA_FIELDS, read_expanded_scan
from penstock.models.spec import (
    AttentionSpec,
    DType,
    EmbeddingScale,
    LayerSpec,
    MixerSum,
    ModelSpec,
    SelectiveSpec,
)

ARCHITECTURE = "FalconH1ForCausalLM"
MODEL_TYPE = "falcon_h1"
KNOWN_AS = "Falcon-H1 90M to 34B"
IDLE: Final = frozenset({"mamba_chunk_size", "mlp_expansion_factor", "num_logits_to_keep"})
CONV: Final = "layers.*.scan.conv"
NAMES: Final = BAMBA_NAMES
_DEFAULTS: Final = {
    "groups": 1,
    "heads": 128,
    "kernel": 4,
    "mamba_d_head": "auto",
    "mamba_d_ssm": 1024,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "state_size": 256,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(MAMBA_FIELDS, _DEFAULTS)
    count = read_num_layers(config)
    config.only("mamba_use_mlp", True, "must be true: every layer has an MLP")
    config.only("layers_block_type", ["hybrid"] * count, "must be hybrid for every layer")
    norm, positions = read_norm(config), read_positions(config)
    config.only("hidden_act", "silu", "must be silu: scans of others are not supported")
    gate, down = read_factors(config, "mlp_multipliers", 2)
    mlp = read_mlp(config, bias=config.boolean("mlp_bias", False))
    attention, (scan, taps) = _read_attention(config, positions), _read_scan(config, norm.eps)
    given = read_factor(config, "attention_in_multiplier")
    attended = given * read_factor(config, "attention_out_multiplier")
    mixers = MixerSum((attention, scan), (attended, read_factor(config, "ssm_out_multiplier")))
    mlp = replace(mlp, gate_factor=gate, output_factor=down)
    layer = LayerSpec(mixers, mlp, attn_norm=norm, mlp_norm=norm)
    assert attention.rope is not None
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * count,
        final_norm=norm,
        max_positions=extended_positions(attention.rope, positions),
    )
    return replace(
        model,
        names=replace(NAMES, names={**NAMES.names, CONV: taps}),
        embedding_scale=EmbeddingScale(read_factor(config, "embedding_multiplier")),
        logits_scale=read_factor(config, "lm_head_multiplier"),
    )


def _read_attention(config: ConfigReader, positions: int) -> AttentionSpec:
    """Factors of queries and keys are those of their scores."""
    head_dim, bias = default_head_dim(config), config.boolean("attention_bias", False)
    given = read_input_factor(config, "attention_in_multiplier", "attention_bias")
    attention = read_attention(config, head_dim, read_kv_heads(config))
    return replace(
        attention,
        rope=read_rope(config, head_dim, positions),
        scale=attention.scale * read_factor(config, "key_multiplier") * given**2,
        qkv_bias=bias,
        output_bias=bias,
    )


def _read_scan(config: ConfigReader, eps: float) -> tuple[SelectiveSpec, Name]:
    """The scan, and where its convolution is, whose taps are multiplied by the factors of its
    channels."""
    scan = read_expanded_scan(config, eps, config.optional_integer("mamba_d_ssm"))
    given = read_input_factor(config, "ssm_in_multiplier", "projection_bias")
    z, x, b, c, dt = (given * f for f in read_factors(config, "ssm_multipliers", 5))
    shared = scan.groups * scan.state
    taps = Times(OneColumn(), ((scan.inner_size, x), (shared, b), (shared, c)))
    scan = replace(
        scan,
        eps=eps if config.boolean("mamba_rms_norm", False) else None,
        gate_first=not config.boolean("mamba_norm_before_gate", True),
        output_bias=config.boolean("projectors_bias", False),
        z_factor=z,
        dt_factor=dt,
    )
    return scan, replace(NAMES.names[CONV], form=taps)
