"""Nemotron 3 and 4, and Minitron: LayerNorms stored less 1, an MLP without a gate, and heads that
rotate in part."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_norm
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.name_forms import Less
from penstock.models.names import NameMap
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec
from penstock.models.ungated import read_ungated

ARCHITECTURE = "NemotronForCausalLM"
MODEL_TYPE = "nemotron"
KNOWN_AS = "Nemotron-4, Minitron 4B and 8B"
NAMES: Final = NameMap(
    {
        pattern: replace(name, form=Less(1.0)) if pattern.endswith("norm") else name
        for pattern, name in LLAMA_NAMES.names.items()
    },
    LLAMA_NAMES.idle,
)
"""Llama's, with norms whose weights are stored less 1."""

_DEFAULTS: Final = {
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(default_partial=0.5)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    norm = read_norm(config, "norm_eps", "layer", bias=True)
    return read_ungated(config, ARCHITECTURE, dtype, biased=False, norm=norm, rope_fields=_ROPE)
