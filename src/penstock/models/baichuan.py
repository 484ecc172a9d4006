"""Baichuan 7B and Baichuan2 7B, which exist as code of their own: Llama with queries, keys and
values fused; the second divides each row of its output matrix by the row's length."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import default_head_dim, read_decoder, read_num_layers
from penstock.models.limits import MAX_POSITIONS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.name_forms import OfAnyLength
from penstock.models.names import Name, NameMap, fused
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import DEFAULT_THETA
from penstock.models.spec import DType, ModelSpec, RopeSpec

ARCHITECTURE = "BaichuanForCausalLM"
ALIASES: Final = ("BaiChuanForCausalLM",)
MODEL_TYPE = "baichuan"
KNOWN_AS = "Baichuan2 7B and Baichuan 7B, as their own code has them (not 13B)"
IDLE: Final = frozenset({"z_loss_weight", "_from_model_config"})
"""What is of training, and of how the file was written."""

_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | fused("model.layers.*.self_attn.W_pack", "layers.*.q", "layers.*.k", "layers.*.v"),
    LLAMA_NAMES.idle,
)
_DEFAULTS: Final = {"rms_norm_eps": 1e-6}
_SECOND: Final = NameMap(
    dict(_NAMES.names) | {"head": Name("lm_head", form=OfAnyLength())}, _NAMES.idle
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    if not config.has("max_position_embeddings"):
        raise config.error(
            "max_position_embeddings",
            "is required: models without it are of 13B, which are not supported",
        )
    config.only("tie_word_embeddings", False, "must be false: Baichuan has an output matrix")
    head_dim, heads = default_head_dim(config), config.integer("num_attention_heads")
    second = config.texts("architectures") == (ARCHITECTURE,)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=heads,
        windows=(None,) * read_num_layers(config),
        rope=RopeSpec(theta=DEFAULT_THETA, dim=head_dim),
    )
    config.optional_integer("model_max_length", high=MAX_POSITIONS)
    return replace(model, names=_SECOND if second else _NAMES)
