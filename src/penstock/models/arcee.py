"""Arcee's AFM: Llama with an MLP that has no gate and squares what is positive."""

from __future__ import annotations

from typing import Final

from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec
from penstock.models.ungated import read_ungated

ARCHITECTURE = "ArceeForCausalLM"
MODEL_TYPE = "arcee"
KNOWN_AS = "AFM 4.5B"

_DEFAULTS: Final = {
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    return read_ungated(config, ARCHITECTURE, dtype, biased=False)
