"""EXAONE 3.0 and 3.5, which exist as code of their own: Llama by other names."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_num_layers,
)
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "ExaoneForCausalLM"
MODEL_TYPE = "exaone"
KNOWN_AS = "EXAONE 3.0 and 3.5"
IDLE: Final = frozenset({"embed_dropout", "resid_dropout"})

_AT: Final = "transformer.h.*."
NAMES: Final = NameMap(
    plain(
        {
            "embed": "transformer.wte",
            "layers.*.attn_norm": _AT + "ln_1",
            "layers.*.q": _AT + "attn.attention.q_proj",
            "layers.*.k": _AT + "attn.attention.k_proj",
            "layers.*.v": _AT + "attn.attention.v_proj",
            "layers.*.o": _AT + "attn.attention.out_proj",
            "layers.*.mlp_norm": _AT + "ln_2",
            "layers.*.gate": _AT + "mlp.c_fc_0",
            "layers.*.up": _AT + "mlp.c_fc_1",
            "layers.*.down": _AT + "mlp.c_proj",
            "final_norm": "transformer.ln_f",
            "head": "lm_head",
        }
    ),
    idle=r"transformer\.h\.\d+\.attn\.attention\.rotary\.inv_freq|transformer\.rotary\.inv_freq",
)

_FIELDS: Final = {
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_DEFAULTS: Final = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=(None,) * read_num_layers(config),
    )
