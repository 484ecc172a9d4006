"""Hunyuan, dense: Llama whose queries and keys are normed behind their rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_positions,
    uniform_windows,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR, MAX_THETA
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import (
    LLAMA_FIELDS,
    read_rope,
    read_theta,
    rope_section,
)
from penstock.models.spec import DType, ModelSpec, QkNormSpec, RopeSpec

ARCHITECTURE = "HunYuanDenseV1ForCausalLM"
MODEL_TYPE = "hunyuan_v1_dense"
KNOWN_AS = "Hunyuan 0.5B to 7B, Hunyuan-MT"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.q_norm": "model.layers.*.self_attn.query_layernorm",
            "layers.*.k_norm": "model.layers.*.self_attn.key_layernorm",
        }
    ),
    LLAMA_NAMES.idle,
)
IDLE: Final = frozenset(
    {
        *("add_classification_head", "class_num", "pool_type", "dense_list", "cla_share_factor"),
        *("eod_token_id", "im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "pad_id"),
        *("text_end_id", "text_start_id", "org_vocab_size", "pretraining_tp"),
    }
)
"""What is of other tasks, of tokenizers, of parts that the model does not have, or is not read."""

_DEFAULTS: Final = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
# What published configurations say of forms that transformers does not compute.
_ONLY: Final = (
    ("mlp_bias", False),
    ("norm_type", "rms"),
    ("use_cla", False),
    ("use_qk_norm", True),
    ("use_rotary_pos_emb", True),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    for name, value in _ONLY:
        config.only(name, value, f"must be {str(value).lower()}: other forms are not supported")
    head_dim, bias = default_head_dim(config), config.boolean("attention_bias", False)
    config.only("attention_head_dim", head_dim, f"contradicts a head_dim of {head_dim}")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        rope=_rope(config, head_dim),
    )
    norm = QkNormSpec(read_norm(config).eps, after_rope=True)
    return with_attention(model, [replace(layer.attention, qk_norm=norm) for layer in model.layers])


def _rope(config: ConfigReader, head_dim: int) -> RopeSpec:
    """The rotation. Of ``dynamic`` parameters with an ``alpha``, a larger base for sequences of any
    length is made of that alone."""
    rope = rope_section(config)
    if rope is None or not rope.has("alpha"):
        return read_rope(config, head_dim, read_positions(config))
    for name in ("rope_type", "type"):
        rope.only(name, "dynamic", "must be 'dynamic' beside an alpha")
    for name in ("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"):
        rope.raw(name)
    alpha = rope.number("alpha", high=MAX_FACTOR)
    theta = read_theta(config, rope) or LLAMA_FIELDS.default_theta
    rope.finish()
    if head_dim < 4:
        raise rope.error("alpha", "needs heads of at least 4 components")
    base = theta * alpha ** (head_dim / (head_dim - 2))
    if not 1.0 < base <= MAX_THETA:
        raise rope.error("alpha", f"makes a base of {base:g}, which is not computed")
    return RopeSpec(theta=base, dim=head_dim)
