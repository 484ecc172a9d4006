"""GLM-4-0414: GLM-4 with a norm behind each part, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.glm import NAMES as GLM_NAMES
from penstock.models.glm import read_glm
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Glm4ForCausalLM"
MODEL_TYPE = "glm4"
KNOWN_AS = "GLM-4-0414 9B and 32B, GLM-Z1"
NAMES: Final = NameMap(
    dict(GLM_NAMES.names)
    | plain(
        {
            "layers.*.attn_post_norm": "model.layers.*.post_self_attn_layernorm",
            "layers.*.mlp_post_norm": "model.layers.*.post_mlp_layernorm",
        }
    ),
    GLM_NAMES.idle,
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    model = read_glm(config, ARCHITECTURE, dtype)
    norm = model.final_norm
    layers = (replace(each, attn_post_norm=norm, mlp_post_norm=norm) for each in model.layers)
    return replace(model, layers=tuple(layers))
