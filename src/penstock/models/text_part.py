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

from penstock.models.families import Family, family_of_type
from penstock.models.spec import ModelSpec

TEXT_CONFIG: Final = "text_config"

NOT_CAUSAL: Final = frozenset(
    {"PaliGemmaForConditionalGeneration", "T5GemmaForConditionalGeneration"}
)
"""Architectures whose text part attends to tokens behind a token's own, too."""

_TEXT_ALONE: Final = (
    "the model also reads what is not text; its language model alone is served, and requests with "
    "images or sound are refused"
)
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
    model_type: object
    """Its own, as the configuration has it."""
    family: Family | None
    """The family that computes it; None if there is none."""


def text_part(config: Mapping[str, object]) -> TextPart | None:
    """The text part of a configuration; None where it is of a language model alone."""
    section = config.get(TEXT_CONFIG)
    if isinstance(section, Mapping):
        kind = section.get("model_type")
        family = family_of_type(kind)
        shared = {name: value for name, value in config.items() if name in _SHARED}
        fields = {**_assumed(family, kind), **shared, **section}
    else:
        kind = config.get("model_type")
        family = family_of_type(kind)
        if family is None or kind == family.model_type or kind not in family.text_parts:
            return None
        own = {name: value for name, value in config.items() if not _PARTS.fullmatch(name)}
        fields = {**_assumed(family, kind), **own}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := fields.get(name), Mapping):
            fields[name] = _of_one_dimension(rope)
    return TextPart(fields, kind, family)


def _assumed(family: Family | None, kind: object) -> Mapping[str, object]:
    """What transformers assumes of a text part of this ``model_type``."""
    return {} if family is None or not isinstance(kind, str) else family.text_parts.get(kind, {})


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
