"""All architectures of GGUF files that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL, SLIDING, every
from penstock.models.gguf.architecture import Architecture, Fields
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.names import one_more, paired
from penstock.models.names import Name
from penstock.models.spec import ModelSpec

_EXPERTS: Final = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_GEMMA_27B: Final = {"gemma2": 46, "gemma3": 62}
"""The layers of the models whose scores are scaled by the hidden size of a head's share."""


def _paired(spec: ModelSpec) -> Mapping[str, Name]:
    attention = spec.layers[0].attention
    return paired(attention.num_heads, attention.num_kv_heads)


def _one_more(spec: ModelSpec) -> Mapping[str, Name]:
    return one_more()


def _windows(keys: Keys, fields: Fields, pattern: int, window: int | None = None) -> None:
    """Which layers have windows: those that a list says, or all but each n-th."""
    said = keys.raw("attention.sliding_window_pattern")
    size = keys.value("attention.sliding_window")
    fields["sliding_window"] = size if size is not None else window
    layers = keys.integer("block_count")
    if isinstance(said, list):
        if len(said) != layers:
            raise keys.error("attention.sliding_window_pattern", f"must have {layers} values")
        kinds = tuple(SLIDING if each else FULL for each in said)
    else:
        kinds = every(said if isinstance(said, int) and said else pattern, layers)
    fields["layer_types"] = list(kinds)


def _gemma_scale(keys: Keys, fields: Fields) -> None:
    heads, head_dim = keys.integer("attention.head_count"), keys.integer("attention.key_length")
    if keys.integer("block_count") == _GEMMA_27B[keys.architecture]:
        head_dim = keys.integer("embedding_length") // heads
    fields["query_pre_attn_scalar"] = head_dim


def _gemma2(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    _windows(keys, fields, 2, 4096)
    for cap, usual in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        fields[cap] = keys.number(cap, usual) or None


def _gemma3(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    if not keys.value("attention.sliding_window"):
        raise keys.error("attention.sliding_window", "is required; convert the model again")
    _windows(keys, fields, 6)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10_000.0)
    fields["final_logit_softcapping"] = keys.number("final_logit_softcapping", 0.0) or None


def _phi3(keys: Keys, fields: Fields) -> None:
    # Converters write the window of models that were trained without one, too, so nobody reads it.
    keys.raw("attention.sliding_window")
    original = keys.raw("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original


_LLAMA: Final = Architecture(
    "LlamaForCausalLM",
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    names=_paired,
)

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": _LLAMA,
    "llama with experts": replace(
        _LLAMA,
        family="MixtralForCausalLM",
        fields=_EXPERTS,
        present={},
        idle_keys=frozenset({"expert_feed_forward_length"}),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "gemma": Architecture("GemmaForCausalLM", names=_one_more),
    "gemma2": Architecture("Gemma2ForCausalLM", adjust=_gemma2, names=_one_more),
    "gemma3": Architecture("Gemma3ForCausalLM", adjust=_gemma3, names=_one_more),
}
"""By ``general.architecture``; ``with experts`` stands for files that have some though others of
the same name do not."""
