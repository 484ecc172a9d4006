"""MPT: ALiBi, no biases, clamped queries, keys and values, and a plain MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_FACTOR, MAX_HIDDEN
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import (
    AlibiSpec,
    AttentionSpec,
    ClampSpec,
    DType,
    LayerSpec,
    MlpSpec,
    ModelSpec,
)

ARCHITECTURE = "MptForCausalLM"
ALIASES = ("MPTForCausalLM",)
MODEL_TYPE = "mpt"
KNOWN_AS = "MPT 7B and 30B"

_IDLE: Final = """
    emb_pdrop embedding_fraction init_config init_device tokenizer_name verbose
"""
IDLE: Final = frozenset(_IDLE.split())
"""Fields of training, and of how others load it."""

NAMES: Final = NameMap(
    plain(
        {
            "embed": "transformer.wte",
            "layers.*.attn_norm": "transformer.blocks.*.norm_1",
            "layers.*.o": "transformer.blocks.*.attn.out_proj",
            "layers.*.mlp_norm": "transformer.blocks.*.norm_2",
            "layers.*.up": "transformer.blocks.*.ffn.up_proj",
            "layers.*.down": "transformer.blocks.*.ffn.down_proj",
            "final_norm": "transformer.norm_f",
            "head": "lm_head",
        }
    )
    | fused("transformer.blocks.*.attn.Wqkv", "layers.*.q", "layers.*.k", "layers.*.v"),
    prefix="transformer.",
)
_FIELDS: Final = {
    "hidden_size": "d_model",
    "max_position_embeddings": "max_seq_len",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}
_DEFAULTS: Final = {"layer_norm_epsilon": 1e-5, "max_position_embeddings": 2048}
_IDLE_ATTENTION: Final = """
    _name_or_path architectures attn_impl attn_pdrop chunk_size_feed_forward dtype id2label
    is_encoder_decoder label2id model_type output_attentions output_hidden_states problem_type
    return_dict torch_dtype transformers_version
"""
# Fields of forms that compute otherwise, with the value that changes nothing. Of most others,
# transformers computes this one all the same, so that what is meant is not known.
_ONLY: Final = (("expansion_ratio", 4), ("no_bias", True), ("logit_scale", None))
_ONLY_ATTENTION: Final = (
    ("attn_type", "multihead_attention"),
    ("attn_uses_sequence_id", False),
    ("alibi", True),
    ("alibi_bias_max", 8),
    ("prefix_lm", False),
    ("qk_ln", False),
    ("rope", False),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS)
    _refuse(config, _ONLY)
    config.boolean("learned_pos_emb", True)  # beside ALiBi there are none
    norm_type = config.text("norm_type", "layernorm")
    if norm_type not in ("layernorm", "low_precision_layernorm"):
        raise config.error("norm_type", "must be layernorm or low_precision_layernorm")
    ffn = config.section("ffn_config")
    if ffn is not None:
        _refuse(ffn, (("ffn_type", "mptmlp"), ("fc_type", "torch")))
        ffn.finish()
    hidden = config.integer("hidden_size", high=MAX_HIDDEN)
    norm = read_norm(config, "layer_norm_epsilon", "layer")
    layer = LayerSpec(
        _attention(config), MlpSpec(4 * hidden, "gelu", gated=False), attn_norm=norm, mlp_norm=norm
    )
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[layer] * read_num_layers(config),
        final_norm=norm,
        max_positions=read_positions(config),
        tie_embeddings=True,
    )


def _attention(config: ConfigReader) -> AttentionSpec:
    heads = config.integer("num_attention_heads")
    attention = replace(read_attention(config, default_head_dim(config), heads), alibi=AlibiSpec())
    section = config.section("attn_config")
    if section is None:
        return attention
    _refuse(section, _ONLY_ATTENTION)
    clip = section.optional_number("clip_qkv", low=0.0, high=MAX_FACTOR)
    scale = section.optional_number("softmax_scale", high=MAX_FACTOR) or attention.scale
    section.finish(_IDLE_ATTENTION.split())
    return replace(attention, scale=scale, clamp=ClampSpec(clip) if clip else None)


def _refuse(config: ConfigReader, only: tuple[tuple[str, object], ...]) -> None:
    for name, value in only:
        shown = "null" if value is None else str(value).lower()
        config.only(name, value, f"must be {shown}: other forms are not supported")
