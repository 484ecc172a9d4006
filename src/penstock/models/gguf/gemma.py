"""Gemma in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.gguf.architecture import Architecture, Fields
from penstock.models.gguf.gemma4 import GEMMA4
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    one_more_names,
    read_windows,
)

_27B: Final = {"gemma2": 46, "gemma3": 62}
"""The layers of the models whose scores are scaled by the hidden size of a head's share."""


def _gemma_scale(keys: Keys, fields: Fields) -> None:
    head_dim = keys.integer("attention.key_length")
    large = keys.integer("block_count") == _27B[keys.architecture]
    fields["query_pre_attn_scalar"] = keys.head_size if large else head_dim


def _gemma2(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    read_windows(keys, fields, 2, 4096)
    for cap, usual in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        fields[cap] = keys.number(cap, usual) or None


def _gemma3(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    if not keys.value("attention.sliding_window"):
        raise keys.error("attention.sliding_window", "is required; convert the model again")
    read_windows(keys, fields, 6)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10_000.0)
    fields["final_logit_softcapping"] = keys.number("final_logit_softcapping", 0.0) or None


GEMMAS: Final[Mapping[str, Architecture]] = {
    "gemma": Architecture("GemmaForCausalLM", names=one_more_names),
    "gemma2": Architecture("Gemma2ForCausalLM", adjust=_gemma2, names=one_more_names),
    "gemma3": Architecture("Gemma3ForCausalLM", adjust=_gemma3, names=one_more_names),
    "gemma4": GEMMA4,
}
"""Gemma's architectures, by ``general.architecture``."""
