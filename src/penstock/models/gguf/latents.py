"""Architectures of GGUF files with attention over latents (MLA)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import DEEPSEEK_EXPERTS, SIGMOID, SOFTMAX, read_expert_scale
from penstock.models.name_forms import OfHeads
from penstock.models.names import Name, either, fused, plain
from penstock.models.spec import ModelSpec

_AT: Final = "blk.*.attn_"
_UPS: Final = ("layers.*.k_up", "layers.*.v_up")
_RANKS: Final = {
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
_GLM_FLASH: Final = ((47, 48), 154880)
"""Layers, and tokens of the vocabulary, of GLM-4.7-Flash, whose first files do not say that scores
are sigmoids."""


def _heads(keys: Keys, fields: Fields) -> None:
    """The sizes of heads. Old files have those of keys and values, and a pair for each head; others
    have these by names of their own, and one pair, which is a latent."""
    rank, turned = keys.integer("attention.kv_lora_rank"), keys.integer("rope.dimension_count")
    heads, split = keys.integer("attention.head_count"), keys.has("attention.key_length_mla")
    size, value = keys.integer("attention.key_length"), keys.integer("attention.value_length")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if split:
        if (size, value, kv_heads) != (rank + turned, rank, 1):
            raise keys.error(
                "attention.key_length", f"must be that of a latent of {rank} and {turned} rotated"
            )
        size = keys.integer("attention.key_length_mla")
        value = keys.integer("attention.value_length_mla")
    elif kv_heads != heads:
        raise keys.error("attention.head_count_kv", f"must be {heads}, one for each head")
    fields |= {"qk_nope_head_dim": size - turned, "v_head_dim": value}
    fields.setdefault("q_lora_rank", None)


def _deepseek(keys: Keys, fields: Fields) -> None:
    _heads(keys, fields)
    read_expert_scale(keys, fields)
    layers, tokens = _GLM_FLASH
    flash = keys.layers in layers and fields["vocab_size"] == tokens
    scores = keys.integer("expert_gating_func", 0) or (SIGMOID if flash else SOFTMAX)
    groups = keys.integer("expert_group_count", 1)
    if not keys.integer("expert_count", 0):
        scores = SIGMOID  # of no experts: V3's fields are enough
        fields["first_k_dense_replace"] = keys.layers
    if scores == SIGMOID:
        fields["architectures"] = ["DeepseekV3ForCausalLM"]
    elif scores != SOFTMAX:
        raise keys.error("expert_gating_func", f"must be {SOFTMAX}, softmax, or {SIGMOID}, sigmoid")
    elif keys.has_tensor("exp_probs_b.bias"):
        raise keys.error(
            "expert_gating_func",
            f"contradicts the tensors exp_probs_b, which models have whose scores are sigmoids "
            f"({SIGMOID}); convert the model again",
        )
    elif groups > 1:
        fields["topk_method"] = "group_limited_greedy"


def _names(spec: ModelSpec) -> Mapping[str, Name]:
    attention = spec.layers[0].attention
    heads, latent = attention.num_heads, attention.latent
    assert latent is not None
    queries = "q" if latent.q_rank is None else "q_b"
    split = {
        _UPS[0]: Name(f"{_AT}k_b", form=OfHeads(heads, transposed=True)),
        _UPS[1]: Name(f"{_AT}v_b", form=OfHeads(heads)),
    }
    return (
        plain({f"layers.*.{name}": f"{_AT}{name}" for name in ("q_a", "q_a_norm", "kv_a_norm")})
        | fused(f"{_AT}{queries}", "layers.*.q_nope", "layers.*.q_rope", shares=heads)
        | fused(f"{_AT}kv_a_mqa", "layers.*.kv_a", "layers.*.k_rope")
        | either(split, fused(f"{_AT}kv_b", *_UPS, shares=heads))
    )


def _minicpm(keys: Keys, fields: Fields) -> None:
    # Factors are those of the one published model, as llama.cpp has them.
    fields["qk_nope_head_dim"] = keys.integer("attention.key_length") - keys.integer(
        "rope.dimension_count"
    )
    fields.setdefault("q_lora_rank", None)


_WITHOUT: Final = without("head_dim", "num_key_value_heads")

LATENTS: Final[Mapping[str, Architecture]] = {
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM",
        fields=_RANKS | DEEPSEEK_EXPERTS,
        without=_WITHOUT,
        otherwise={
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "n_shared_experts": 0,
        },
        adjust=_deepseek,
        names=_names,
    ),
    "minicpm3": Architecture(
        "MiniCPM3ForCausalLM",
        fields=_RANKS,
        without=_WITHOUT,
        adjust=_minicpm,
        names=_names,
        idle_keys=frozenset({"attention.head_count_kv"}),
    ),
}
"""Architectures whose heads read latents, by ``general.architecture``."""
