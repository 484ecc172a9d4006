"""Gemma 4 in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import FULL, SLIDING
from penstock.models.gguf.architecture import Architecture, Fields
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.names import QKV
from penstock.models.gguf.parts import read_windows
from penstock.models.mixtures import ROUTER
from penstock.models.names import Name, plain
from penstock.models.spec import ModelSpec

_AT: Final = "blk.*."
_PATTERN: Final = "attention.sliding_window_pattern"
_WIDTHS: Final = "feed_forward_length"


def _gemma4(keys: Keys, fields: Fields) -> None:
    if not isinstance(keys.raw(_PATTERN), list):
        raise keys.error(_PATTERN, "must have a value for each layer; convert the model again")
    read_windows(keys, fields, 6)
    kinds = fields["layer_types"]
    assert isinstance(kinds, list)
    _heads(keys, fields, kinds)
    _widths(keys, fields)
    _rotations(keys, fields)
    fields["hidden_size_per_layer_input"] = keys.integer("embedding_length_per_layer_input", 0)
    fields["vocab_size_per_layer_input"] = fields["vocab_size"]
    fields["final_logit_softcapping"] = keys.number("final_logit_softcapping", 0.0) or None
    if keys.integer("expert_count", 0):
        fields["enable_moe_block"] = True


def _heads(keys: Keys, fields: Fields, kinds: list[str]) -> None:
    """Heads by kind of layer, and whether values of layers without a window are their keys."""
    size, local = keys.integer("attention.key_length"), keys.integer("attention.key_length_swa")
    if keys.integer("attention.value_length_swa", local) != local:
        raise keys.error("attention.value_length_swa", "must be attention.key_length_swa here")
    heads = keys.each_layer("attention.head_count_kv")
    fields["head_dim"] = local
    shared = keys.integer("attention.shared_kv_layers", 0)
    fields["num_kv_shared_layers"] = shared
    sliding = {n for n, kind in zip(heads, kinds, strict=True) if kind == SLIDING}
    if len(sliding) > 1:
        raise keys.error("attention.head_count_kv", "must be one number for layers with a window")
    fields["num_key_value_heads"] = max(sliding, default=heads[0])
    full = [i for i, kind in enumerate(kinds) if kind == FULL]
    fields["per_layer_config"] = {
        str(i): {"head_dim": size, "num_key_value_heads": heads[i]} for i in full
    }
    own = [i for i in full if i < len(kinds) - shared]
    values = {keys.has_tensor(f"blk.{i}.attn_v.weight") for i in own}
    if len(values) > 1:
        raise keys.error("attention.head_count_kv", "has values in some of the layers alone")
    fields["attention_k_eq_v"] = values == {False}


def _widths(keys: Keys, fields: Fields) -> None:
    """Layers that read the keys of others may have MLPs of twice the width."""
    widths = keys.each_layer(_WIDTHS)
    shared = keys.integer("attention.shared_kv_layers", 0, high=len(widths) - 1)
    first = len(widths) - shared
    wide = bool(shared) and widths[-1] == 2 * widths[0]
    if widths != [widths[0]] * first + [widths[0] * (2 if wide else 1)] * shared:
        raise keys.error(_WIDTHS, "must be one number, or twice it in layers that share keys")
    fields |= {"intermediate_size": widths[0], "use_double_wide_mlp": wide}


def _rotations(keys: Keys, fields: Fields) -> None:
    local = keys.integer("attention.key_length_swa")
    if keys.integer("rope.dimension_count_swa", local) != local:
        raise keys.error("rope.dimension_count_swa", f"must be {local}, the size of a head, here")
    scaling = fields.pop("rope_scaling", {"rope_type": "default"})
    assert isinstance(scaling, dict)
    fields["rope_parameters"] = {
        FULL: {"rope_theta": fields.pop("rope_theta"), **scaling},
        SLIDING: {
            "rope_type": "default",
            "rope_theta": keys.number("rope.freq_base_swa", 10_000.0),
        },
    }


def _names(spec: ModelSpec) -> Mapping[str, Name]:
    """Queries, keys and values are never in one tensor: layers lack some of them."""
    return plain(
        {
            **{each: f"{_AT}attn_{each[-1]}" for each in QKV},
            "layers.*.token_gate": f"{_AT}inp_gate",
            "layers.*.token_up": f"{_AT}proj",
            "layers.*.token_norm": f"{_AT}post_norm",
            "layers.*.output_scale": f"{_AT}layer_output_scale",
            "token_inputs.embed": "per_layer_token_embd",
            "token_inputs.project": "per_layer_model_proj",
            "token_inputs.norm": "per_layer_proj_norm",
            "layers.*.experts_norm": f"{_AT}pre_ffw_norm_2",
            "layers.*.experts_post_norm": f"{_AT}post_ffw_norm_2",
            "layers.*.shared_post_norm": f"{_AT}post_ffw_norm_1",
            **{f"layers.*.shared.{name}": f"{_AT}ffn_{name}" for name in ("gate", "up", "down")},
        }
    ) | {
        "layers.*.router_norm": Name(f"{_AT}ffn_gate_inp", suffix=".scale"),
        f"{ROUTER}.share_scale": Name(f"{_AT}ffn_down_exps", suffix=".scale"),
    }


GEMMA4: Final = Architecture(
    "Gemma4ForCausalLM",
    fields={
        "num_experts": "expert_count",
        "top_k_experts": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    },
    without=frozenset({"intermediate_size", "num_key_value_heads"}),
    adjust=_gemma4,
    names=_names,
    # Files have keys and values of layers that read those of others, too.
    idle=r"blk\.\d+\.attn_[kv](_norm)?\.weight",
)
