"""HyperCLOVA X SEED: Granite's factors, and a norm behind each part, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import default_head_dim
from penstock.models.granite import read_granite
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "HyperCLOVAXForCausalLM"
MODEL_TYPE = "hyperclovax"
KNOWN_AS = "HyperCLOVA X SEED Think 14B"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.attn_post_norm": "model.layers.*.post_norm1",
            "layers.*.mlp_post_norm": "model.layers.*.post_norm2",
        }
    ),
    LLAMA_NAMES.idle,
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    behind = config.boolean("use_post_norm", True)
    scale = default_head_dim(config) ** -0.5
    model = read_granite(config, ARCHITECTURE, dtype, scale)
    # Logits are multiplied by what Granite divides them by.
    model = replace(model, logits_scale=1.0 / model.logits_scale)
    if not behind:
        return model
    norm = model.final_norm
    layers = (replace(each, attn_post_norm=norm, mlp_post_norm=norm) for each in model.layers)
    return replace(model, layers=tuple(layers))
