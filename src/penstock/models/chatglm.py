"""ChatGLM2, ChatGLM3 and GLM-4 as their own code has them: GLM-4 by other names."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import default_head_dim, read_decoder, read_kv_heads, read_num_layers
from penstock.models.limits import MAX_THETA
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import DEFAULT_THETA
from penstock.models.spec import DType, ModelSpec, RopeSpec

ARCHITECTURE = "ChatGLMModel"
ALIASES: Final = ("ChatGLMForConditionalGeneration",)
MODEL_TYPE = "chatglm"
KNOWN_AS = "ChatGLM3-6B, GLM-4-9B and their long forms, ChatGLM2-6B, as their own code has them"

_AT: Final = "transformer.encoder.layers.*."
NAMES: Final = NameMap(
    plain(
        {
            "embed": "transformer.embedding.word_embeddings",
            "layers.*.attn_norm": _AT + "input_layernorm",
            "layers.*.o": _AT + "self_attention.dense",
            "layers.*.mlp_norm": _AT + "post_attention_layernorm",
            "layers.*.down": _AT + "mlp.dense_4h_to_h",
            "final_norm": "transformer.encoder.final_layernorm",
            "head": "transformer.output_layer",
        }
    )
    | fused(_AT + "self_attention.query_key_value", "layers.*.q", "layers.*.k", "layers.*.v")
    | fused(_AT + "mlp.dense_h_to_4h", "layers.*.gate", "layers.*.up"),
    idle=r"transformer\.rotary_pos_emb\.inv_freq",
)

_FIELDS: Final = {
    "num_hidden_layers": "num_layers",
    "vocab_size": "padded_vocab_size",
    "intermediate_size": "ffn_hidden_size",
    "num_key_value_heads": "multi_query_group_num",
    "head_dim": "kv_channels",
    "rms_norm_eps": "layernorm_epsilon",
    "max_position_embeddings": "seq_length",
}
# Scores are divided by the number of the layer and multiplied by it again; types between
# operations are float32 here in any case; the rest is of training and of other tasks.
_IDLE: Final = (
    *("apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion"),
    *("fp32_residual_connection", "classifier_dropout"),
)
# Fields of forms that compute otherwise, with the value that is computed.
_ONLY: Final = (
    ("add_bias_linear", False),
    ("apply_residual_connection_post_layernorm", False),
    ("interleaved_qkv", False),
    ("original_rope", True),
    ("post_layer_norm", True),
    ("pre_seq_len", None),
    ("prefix_projection", False),
    ("quantization_bit", 0),
    ("rmsnorm", True),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, {"rms_norm_eps": 1e-5}, _IDLE)
    for name, value in _ONLY:
        config.only(name, value, f"must be {str(value).lower()}: other forms are not supported")
    if not config.boolean("multi_query_attention", False):
        raise config.error(
            "multi_query_attention", "must be true: ChatGLM without shared keys is not supported"
        )
    head_dim = default_head_dim(config)
    if head_dim % 4:
        raise config.error("head_dim", "must be a multiple of 4, as half of a head rotates")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=(None,) * read_num_layers(config),
        qkv_bias=config.boolean("add_qkv_bias", False),
        rope=RopeSpec(theta=_theta(config), dim=head_dim // 2, interleaved=True),
    )


def _theta(config: ConfigReader) -> float:
    """The base, which ``rope_ratio`` multiplies. ChatGLM2's code divides positions by it instead,
    and only the name of the checkpoint tells which code that is."""
    ratio = config.number("rope_ratio", 1.0, high=MAX_THETA / DEFAULT_THETA)
    name = config.raw("_name_or_path")
    if ratio != 1.0 and isinstance(name, str) and "chatglm2" in name.lower():
        raise config.error("rope_ratio", "must be 1: ChatGLM2's scaling is not supported")
    return DEFAULT_THETA * ratio
