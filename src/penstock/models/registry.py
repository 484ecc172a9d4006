"""Turns a checkpoint's config.json into a ModelSpec: which families there are, and what is
refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from penstock.errors import ModelError
from penstock.models.blocks import read_dtype
from penstock.models.classifier import SUFFIX as CLASSIFIES
from penstock.models.classifier import TokenId, read_classifier
from penstock.models.families import FAMILIES, Family, family_of_type
from penstock.models.generation_config import read_generation_config
from penstock.models.idle_fields import IDLE_FIELDS
from penstock.models.modelopt import METHOD as MODELOPT
from penstock.models.names import NameMap
from penstock.models.quantized import read_quantized
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec, attention_of
from penstock.models.text_part import NOT_CAUSAL, TEXT_CONFIG, TextPart, placed, text_part
from penstock.models.wording import Wording

_ONLY: Final[tuple[tuple[str, object, str], ...]] = (
    ("pretraining_tp", 1, "must be 1: sliced linear layers are not supported"),
    ("is_encoder_decoder", False, "must be false: Penstock serves decoder-only models"),
    ("tie_encoder_decoder", False, "must be false: Penstock serves decoder-only models"),
    ("add_cross_attention", False, "must be false: cross-attention is not supported"),
    ("cross_attention_hidden_size", None, "must be null: cross-attention is not supported"),
    ("pruned_heads", {}, "must be empty: pruned heads are not supported"),
)
"""Fields of values that no family supports."""

_ONLY_UNREAD: Final[tuple[tuple[str, object, str], ...]] = (
    ("rope_interleaved", False, "must be false: this architecture rotates halves"),
    ("use_mrope", False, "must be false: positions of several dimensions are not supported"),
    ("use_sliding_window", False, "must be false: this architecture has no windows"),
    ("sliding_window", None, "must be null: this architecture has no windows"),
    ("num_experts", 0, "must be 0 or null: this architecture has no experts"),
)
"""Fields that some families have, and tools write into configurations of others."""


_LACKING: Final[Mapping[str, str]] = {
    "Zamba2ForCausalLM": (
        "its shared blocks read the embeddings beside the residual stream, their matrices have "
        "adapters of low rank for each layer, and what they make is added to what the layer's scan "
        "reads and not to the residual stream"
    )
}
"""Architectures that are near to those that are supported, and what layers cannot be declared to
have."""


def _no_tokenizer(text: str) -> int:
    raise ModelError(f"the token of the label {text!r} is not known without a tokenizer")


def read_spec(
    config: Mapping[str, object],
    *,
    generation: Mapping[str, object] | None = None,
    quantization: Mapping[str, object] | None = None,
    default_dtype: DType | None = None,
    tensors: Collection[str] = (),
    ignore: Collection[str] = (),
    sampling_defaults: bool = True,
    where: str = "config.json",
    wording: Wording | None = None,
    token_id: TokenId = _no_tokenizer,
) -> ModelSpec:
    """The model that a Hugging Face ``config.json`` describes.

    ``generation`` is ``generation_config.json``: end-of-sequence ids, and defaults of sampling.
    ``quantization`` is ``hf_quant_config.json``, for configurations that do not tell themselves how
    the checkpoint is quantized. ``default_dtype`` is used where the configuration names none.
    ``tensors`` are the names of those that the checkpoint has, by which the layouts of text parts
    are told apart. ``ignore`` names fields that are passed over though they are not known; without
    ``sampling_defaults`` those of ``generation`` are. ``wording`` says what messages call fields of
    a configuration that was made of another file. ``token_id`` finds the tokens of labels that are
    some. Raises
    :class:`~penstock.errors.ModelError`, naming ``where``, for architectures, fields and values
    that Penstock does not know.
    """
    part = text_part(config)
    outer = ConfigReader(config, where, wording=wording)
    family = _find_family(outer, part)
    architecture = (outer.texts("architectures") or ("",))[0]
    if part is None:
        reader = ConfigReader(config, where, ignore, wording)
    else:
        inner = where if TEXT_CONFIG not in config else f"{where}: {TEXT_CONFIG}"
        reader = ConfigReader(part.fields, inner, ignore, wording)
    reader.raw("architectures"), reader.raw("model_type")
    refuse_unsupported(reader, family.idle)
    dtype = read_dtype(reader) or default_dtype
    if dtype is None:
        raise reader.error("dtype", "is required: float32, bfloat16 or float16")
    spec = family.read(reader, dtype)
    if spec.names is None:
        spec = replace(spec, names=family.names)
    if part is not None and spec.names is not None:
        spec = placed(spec, tensors)
    if architecture.endswith(CLASSIFIES):
        of = reader if part is None else outer
        spec = replace(read_classifier(of, spec, token_id), architecture=architecture)
    own = reader.section("quantization_config")
    if own is None and quantization is not None:
        its = where.replace("config.json", "hf_quant_config.json")
        own = ConfigReader({"quant_method": MODELOPT, **quantization}, its, ignore)
    if own is not None:
        spec = replace(spec, quantized=read_quantized(own, spec.names or NameMap({})))
    _finish(reader, spec, family.idle, ignore)
    if generation is not None:
        its = where.replace("config.json", "generation_config.json")
        more = read_generation_config(generation, spec.vocab_size, its, sampling_defaults, wording)
        merged = tuple(dict.fromkeys(spec.eos_token_ids + more.eos_token_ids))
        spec = replace(spec, eos_token_ids=merged, sampling_defaults=more.defaults)
    if ignore:
        names = ", ".join(sorted(reader.ignored))
        spec = replace(spec, notes=(*spec.notes, f"config.json: {names} ignored, as asked"))
    return spec


def _finish(
    reader: ConfigReader, spec: ModelSpec, idle: Collection[str], ignore: Collection[str]
) -> None:
    """Refuse fields that nothing has read, and fields to be ignored that are none of these."""
    for name, value, why in _ONLY_UNREAD:
        reader.only_unread(name, value, why)
    attention = (attention_of(layer) for layer in spec.layers)
    if not any(each is not None and each.window for each in attention):
        reader.raw("max_window_layers")
    reader.finish(IDLE_FIELDS.union(idle))
    for name in sorted(set(ignore) - set(reader.ignored)):
        raise ModelError(
            f"{reader.where}: ignore_config_field {name} is of no use: the file has no such field, "
            "or Penstock knows it; leave it out"
        )


def refuse_unsupported(reader: ConfigReader, idle: Collection[str] = ()) -> None:
    """Raise ModelError for values of common fields that no family supports.

    ``idle``: fields that change nothing here.
    """
    for name, value, why in _ONLY:
        if name not in idle:
            reader.only(name, value, why)


def _find_family(config: ConfigReader, part: TextPart | None) -> Family:
    names = config.texts("architectures")
    supported = f"docs/models.md lists the {len(FAMILIES)} that are"
    if not names:
        raise config.error(
            "architectures", f"must name an architecture that is supported; {supported}"
        )
    if len(names) > 1:
        raise config.error("architectures", "must name one architecture")
    family = FAMILIES.get(names[0])
    if family is None and part is None and names[0].endswith(CLASSIFIES):
        family = _classifier_family(names[0], config.raw("model_type"))
    if part is not None and family is None:
        if names[0] in NOT_CAUSAL:
            raise config.error("architectures", "is not supported: its text is not read causally")
        family = part.family
        if family is None:
            raise config.error(
                "architectures",
                f"is not supported: its language model is of type {part.model_type!r}; {supported}",
            )
        return family
    if family is None:
        lacking = f": {_LACKING[names[0]]}" if names[0] in _LACKING else ""
        raise config.error("architectures", f"is not supported{lacking}; {supported}")
    named = config.text("model_type", family.model_type)
    if named != family.model_type and named not in family.other_types:
        raise config.error(
            "model_type", f"contradicts {family.architecture}, which is {family.model_type!r}"
        )
    return family


def _classifier_family(architecture: str, model_type: object) -> Family | None:
    """The family whose layers a model that classifies has; None if there is none.

    transformers calls it as the language model, with another ending, or by "Text" before that.
    """
    family = family_of_type(model_type)
    if family is None:
        return None
    own = {_stem(name) for name in (family.architecture, *family.aliases)}
    return family if {_stem(architecture), _stem(architecture).removesuffix("Text")} & own else None


def _stem(architecture: str) -> str:
    """The name of an architecture without what it is for."""
    for ending in ("ForCausalLM", "LMHeadModel", CLASSIFIES):
        architecture = architecture.removesuffix(ending)
    return architecture
