"""Decoders of GPT-2's kind, with LayerNorms and biases, in GGUF files: BLOOM, Falcon, MPT, ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    LAYER_NORM,
)
from penstock.models.names import Name, plain
from penstock.models.spec import ModelSpec

_ABSENT: Final = without("rms_norm_eps", "head_dim", "num_key_value_heads")
_MPT_SLOPES: Final = 8.0
"""What slopes are made of in all MPT models."""


def _falcon(keys: Keys, fields: Fields) -> None:
    """Some of the newer decoders, which share keys in groups, have one norm for both parts."""
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    norms = 2 if fields["new_decoder_architecture"] else 1
    new = norms == 2 or kv_heads not in (1, heads)
    fields |= {"num_kv_heads": kv_heads, "multi_query": kv_heads == 1 and not new}
    fields["new_decoder_architecture"] = new
    if new:
        fields["num_ln_in_parallel_attn"] = norms


def _falcon_names(spec: ModelSpec) -> Mapping[str, Name]:
    """Two norms in parallel, the second of which is that of attention."""
    if spec.layers[0].mlp_norm is None:
        return {}
    at = "blk.*.attn_norm"
    return plain({"layers.*.attn_norm": f"{at}_2", "layers.*.mlp_norm": at})


def _mpt(keys: Keys, fields: Fields) -> None:
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if keys.number("attention.max_alibi_bias", 0.0) != _MPT_SLOPES:
        raise keys.error("attention.max_alibi_bias", "must be 8: others are not supported")
    if keys.integer("attention.head_count_kv", heads) != heads:
        raise keys.error("attention.head_count_kv", f"must be {heads}, one for each head")
    if keys.integer("feed_forward_length", 4 * hidden) != 4 * hidden:
        raise keys.error("feed_forward_length", f"must be {4 * hidden}")
    clip = keys.number("attention.clamp_kqv", 0.0)
    fields["attn_config"] = {"alibi": True, "clip_qkv": clip or None}


def _starcoder(keys: Keys, fields: Fields) -> None:
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if kv_heads not in (1, heads):
        raise keys.error("attention.head_count_kv", f"must be 1 or {heads}")
    fields["multi_query"] = kv_heads == 1


_GPT2: Final = Architecture(
    "GPT2LMHeadModel",
    fields={"layer_norm_epsilon": LAYER_NORM, "n_inner": "feed_forward_length"},
    without=_ABSENT | {"intermediate_size"},
    rotates=False,
)
_FOUR_TIMES: Final = replace(_GPT2, fields={"layer_norm_epsilon": LAYER_NORM})
"""Those whose MLPs are as wide as four hidden states."""

OLDER: Final[Mapping[str, Architecture]] = {
    "bloom": replace(
        _FOUR_TIMES,
        family="BloomForCausalLM",
        idle_keys=frozenset(
            {"feed_forward_length", "attention.head_count_kv", "attention.max_alibi_bias"}
        ),
    ),
    "falcon": replace(
        _FOUR_TIMES,
        family="FalconForCausalLM",
        rotates=True,
        fixed={"parallel_attn": True, "bias": False},
        present={"new_decoder_architecture": "blk.0.attn_norm_2.weight"},
        adjust=_falcon,
        names=_falcon_names,
        idle_keys=frozenset({"feed_forward_length"}),
    ),
    "gpt2": _GPT2,
    "gptneox": Architecture(
        "GPTNeoXForCausalLM",
        fields={
            "layer_norm_eps": LAYER_NORM,
            "use_parallel_residual": "use_parallel_residual",
            "rotary_emb_base": "rope.freq_base",
        },
        without=_ABSENT | {"rope_theta"},
        present={"attention_bias": "blk.0.attn_qkv.bias"},
        partial="rotary_pct",
    ),
    "mpt": replace(_FOUR_TIMES, family="MptForCausalLM", adjust=_mpt),
    "starcoder": replace(_GPT2, family="GPTBigCodeForCausalLM", adjust=_starcoder),
}
"""These architectures, by ``general.architecture``."""
