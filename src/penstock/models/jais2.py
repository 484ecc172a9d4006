"""Jais 2: Llama with LayerNorms, biases, and an MLP that has no gate and squares what is
positive."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import read_norm
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec
from penstock.models.ungated import read_ungated

ARCHITECTURE = "Jais2ForCausalLM"
MODEL_TYPE = "jais2"
KNOWN_AS = "Jais 2 8B and 70B"

_DEFAULTS: Final = {
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    norm = read_norm(config, "layer_norm_eps", "layer", bias=True)
    return read_ungated(config, ARCHITECTURE, dtype, biased=True, norm=norm)
