"""InternLM2 and 2.5, which exist as code of their own: Llama by other names, with queries, keys
and values fused, a group of heads at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_num_layers,
)
from penstock.models.names import NameMap, fused, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "InternLM2ForCausalLM"
MODEL_TYPE = "internlm2"
KNOWN_AS = "InternLM2 and 2.5, as their own code has them"
IDLE: Final = frozenset({"attn_implementation", "pretraining_tp"})
"""Which of several forms of the same their own code runs."""

_DEFAULTS: Final = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
_ROPE: Final = RopeFields(kinds=("default", "linear", "dynamic"))


def names(kv_heads: int) -> NameMap:
    """The names of the weights. Behind the queries that share a key and a value come these two."""
    at = "model.layers.*."
    qkv = ("layers.*.q", "layers.*.k", "layers.*.v")
    return NameMap(
        plain(
            {
                "embed": "model.tok_embeddings",
                "layers.*.attn_norm": at + "attention_norm",
                "layers.*.o": at + "attention.wo",
                "layers.*.mlp_norm": at + "ffn_norm",
                "layers.*.gate": at + "feed_forward.w1",
                "layers.*.up": at + "feed_forward.w3",
                "layers.*.down": at + "feed_forward.w2",
                "final_norm": "model.norm",
                "head": "output",
            }
        )
        | fused(at + "attention.wqkv", *qkv, shares=kv_heads),
        idle=r"model\.layers\.\d+\.attention\.rotary_emb\.inv_freq",
    )


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    bias, kv_heads = config.boolean("bias", True), read_kv_heads(config)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=kv_heads,
        windows=(None,) * read_num_layers(config),
        qkv_bias=bias,
        output_bias=bias,
        rope_fields=_ROPE,
    )
    return replace(model, names=names(kv_heads))
