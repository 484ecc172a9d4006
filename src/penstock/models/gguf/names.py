"""What GGUF files call a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.mixtures import CHOICE_BIAS, DOWN, GATE, ROUTER, UP
from penstock.models.name_forms import AsVector, Less, Paired, Rows
from penstock.models.names import Name, either, fused, plain, stacked

_AT: Final = "blk.*."
QKV: Final = ("layers.*.q", "layers.*.k", "layers.*.v")

_NORMS: Final = {
    "embed_norm": "token_embd_norm",
    "final_norm": "output_norm",
    "layers.*.attn_norm": f"{_AT}attn_norm",
    "layers.*.attn_post_norm": f"{_AT}post_attention_norm",
    "layers.*.mlp_norm": f"{_AT}ffn_norm",
    "layers.*.mlp_post_norm": f"{_AT}post_ffw_norm",
    "layers.*.q_norm": f"{_AT}attn_q_norm",
    "layers.*.k_norm": f"{_AT}attn_k_norm",
}

GENERAL: Final[Mapping[str, Name]] = (
    plain(
        {
            "embed": "token_embd",
            "positions": "position_embd",
            "head": "output",
            "layers.*.o": f"{_AT}attn_output",
            "layers.*.sinks": f"{_AT}attn_sinks",
            "layers.*.gate": f"{_AT}ffn_gate",
            "layers.*.up": f"{_AT}ffn_up",
            "layers.*.down": f"{_AT}ffn_down",
            ROUTER: f"{_AT}ffn_gate_inp",
            "layers.*.shared.gate": f"{_AT}ffn_gate_shexp",
            "layers.*.shared.up": f"{_AT}ffn_up_shexp",
            "layers.*.shared.down": f"{_AT}ffn_down_shexp",
        }
        | _NORMS
    )
    | either(plain({each: f"{_AT}attn_{each[-1]}" for each in QKV}), fused(f"{_AT}attn_qkv", *QKV))
    | {
        CHOICE_BIAS: Name(f"{_AT}exp_probs_b", suffix=".bias"),
    }
    | either(
        plain({"layers.*.shared.share": f"{_AT}ffn_gate_inp_shexp"}),
        {"layers.*.shared.share": Name(f"{_AT}ffn_gate_inp_shexp", form=AsVector())},
    )
    | either(
        stacked(f"{_AT}ffn_gate_exps", GATE, suffix=".weight", quantized=True)
        | stacked(f"{_AT}ffn_up_exps", UP, suffix=".weight", quantized=True),
        stacked(f"{_AT}ffn_gate_up_exps", GATE, UP, suffix=".weight", quantized=True),
    )
    | stacked(f"{_AT}ffn_down_exps", DOWN, suffix=".weight", quantized=True)
)
"""The names that architectures have unless they say otherwise."""

IDLE: Final = (
    r".*\.input_scale|rope_freqs\.weight|rope_factors_(long|short)\.weight|blk\.\d+\.attn_rot_embd"
)
"""Regular expression of tensors that are read with the configuration, or by nobody:
``input_scale`` is for programs that round activations to 4 bits."""


def one_more() -> dict[str, Name]:
    """Norms whose weights are stored as they are multiplied, and are read in float32: in other
    checkpoints of the family they are stored less 1."""
    return {pattern: Name(stored, form=Less(0.0)) for pattern, stored in _NORMS.items()}


def paired(heads: int, kv_heads: int) -> dict[str, Name]:
    """Queries and keys in which components that rotate together lie side by side."""
    numbers = dict(zip(QKV[:2], (heads, kv_heads), strict=True))

    def form(name: Name, heads: int) -> Name:
        assert isinstance(name.form, Rows)
        rest = None if name.otherwise is None else form(name.otherwise, heads)
        return replace(name, form=Paired(heads, name.form), otherwise=rest)

    return {pattern: form(GENERAL[pattern], number) for pattern, number in numbers.items()}
