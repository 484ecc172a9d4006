"""Models that read images or sound as well: the configuration and the names of their text part.

Such a model's ``config.json`` names a ``*ForConditionalGeneration`` and has the language model's
fields in a section, ``text_config``; the older form of Qwen-VL has them beside the other fields.
Given text alone, the language model computes what a model of its family does: positions that have
several dimensions are then equal in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.models.spec import ModelSpec

TEXT_CONFIG: Final = "text_config"

MODEL_TYPES: Final[Mapping[str, str]] = {
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""The ``model_type`` of the family that computes a text part, where that has another of its own."""

NOT_CAUSAL: Final = frozenset(
    {"PaliGemmaForConditionalGeneration", "T5GemmaForConditionalGeneration"}
)
"""Architectures whose text part attends to tokens behind a token's own, too."""

_TEXT_ALONE: Final = (
    "the model also reads what is not text; its language model alone is served, and requests with "
    "images or sound are refused"
)
_SIZES: Final[Mapping[str, Mapping[str, object]]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    },
    "qwen3_vl_moe_text": {"norm_topk_prob": True},
}
"""What transformers assumes where a ``text_config`` of this ``model_type`` leaves sizes out, as the
published ones do that it wrote itself."""
_SHARED: Final = frozenset(
    (
        "dtype", "torch_dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id",
        "pad_token_id", "quantization_config",
    )
)  # fmt: skip
_PARTS: Final = re.compile(
    r"(vision|visual|image|video|audio|speech|projector|mm|img|vit|qformer|multimodal)_\w+"
    r"|\w+_(vision|image|video|audio)_\w+|\w*(image|video|audio|vision)\w*"
)
"""Fields beside the language model's own that are of its other parts."""


_SECTIONS: Final = frozenset({"mrope_section", "mrope_interleaved"})
"""How the dimensions of a position share the components of a head."""


@dataclass(frozen=True)
class TextPart:
    """The language model's fields, as if they were a ``config.json`` of their own."""

    fields: Mapping[str, object]
    model_type: str | None
    """That of the family which computes it, if it is known; None if it is not told."""


def text_part(config: Mapping[str, object]) -> TextPart | None:
    """The text part of a configuration; None where it is of a language model alone."""
    section = config.get(TEXT_CONFIG)
    if isinstance(section, Mapping):
        shared = {name: value for name, value in config.items() if name in _SHARED}
        kind = section.get("model_type")
        sizes = _SIZES.get(kind, {}) if isinstance(kind, str) else {}
        fields = {**sizes, **shared, **section}
    else:
        kind = config.get("model_type")
        if not isinstance(kind, str) or kind not in MODEL_TYPES:
            return None
        fields = {name: v for name, v in config.items() if not _PARTS.fullmatch(name)}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := fields.get(name), Mapping):
            fields[name] = _of_one_dimension(rope)
    return TextPart(fields, MODEL_TYPES.get(kind, kind) if isinstance(kind, str) else None)


def _of_one_dimension(rope: Mapping[str, object]) -> dict[str, object]:
    """The rotation by positions of which all dimensions are equal, as they are in text."""
    plain = {name: v for name, v in rope.items() if name not in _SECTIONS}
    for name in ("type", "rope_type"):
        if plain.get(name) == "mrope":
            plain[name] = "default"
    return plain


@dataclass(frozen=True)
class _Layout:
    """Where a checkpoint has the tensors that a language model of its own begins with ``model.``
    and ``lm_head``."""

    body: str
    head: str
    others: str
    """Regular expression of the tensors of other parts."""


_LAYOUTS: Final = tuple(
    _Layout(body, head, rf"(?!{re.escape(body)}|{re.escape(head)}\.).*")
    for body, head in (
        ("model.language_model.", "lm_head"),
        ("language_model.model.", "language_model.lm_head"),
        ("model.text_model.", "lm_head"),
    )
)
_PLAIN: Final = _Layout("model.", "lm_head", r"(model\.)?visual\..*")


def placed(spec: ModelSpec, tensors: Collection[str]) -> ModelSpec:
    """The text part ``spec`` as a checkpoint of these ``tensors`` has it; as a language model of
    its own would be stored, where none are known.

    Whether the output matrix is the embedding is told by whether it is stored: configurations of
    larger models say so in two places, which contradict each other.
    """
    names = spec.names
    assert names is not None
    layout = next(
        (each for each in _LAYOUTS if any(name.startswith(each.body) for name in tensors)), _PLAIN
    )
    moved = names.moved({"model.": layout.body, "lm_head": layout.head})
    tied = spec.tie_embeddings
    if tensors:
        tied = not any(name.startswith(f"{layout.head}.") for name in tensors)
    return replace(
        spec,
        names=replace(moved, others=layout.others),
        tie_embeddings=tied,
        notes=(*spec.notes, _TEXT_ALONE),
    )
