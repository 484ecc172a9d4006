"""Turns a checkpoint's config.json into a ModelSpec: which families there are, and what is
refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final

from penstock.models.blocks import read_dtype
from penstock.models.families import MODULES
from penstock.models.names import NameMap
from penstock.models.quantized import read_quantized
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec


@dataclass(frozen=True)
class Family:
    """One architecture: its name in ``architectures``, its ``model_type``, its reader, and what its
    checkpoints call the weights, where the reader does not say."""

    architecture: str
    model_type: str
    read: Callable[[ConfigReader, DType], ModelSpec]
    names: NameMap | None
    other_types: frozenset[str]
    """Further values of ``model_type`` that mean the same."""
    own_code: frozenset[str]
    """Classes that ``auto_map`` may name: code of the checkpoint's own, which computes the same."""
    aliases: tuple[str, ...]
    """Other names that ``architectures`` may have for it."""
    idle: frozenset[str]
    """Fields that change nothing in this family, whatever their value."""


def _family(module: ModuleType) -> Family:
    return Family(
        module.ARCHITECTURE,
        module.MODEL_TYPE,
        module.read,
        getattr(module, "NAMES", None),
        getattr(module, "OTHER_MODEL_TYPES", frozenset()),
        getattr(module, "OWN_CODE", frozenset()),
        getattr(module, "ALIASES", ()),
        getattr(module, "IDLE", frozenset()),
    )


FAMILIES: Final[Mapping[str, Family]] = {
    name: family
    for family in map(_family, MODULES)
    for name in (family.architecture, *family.aliases)
}

_INSTEAD: Final[Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": (
        "images are not read, and the language model must be saved by itself: as "
        "Gemma3ForCausalLM, which docs/models.md shows how to do with transformers"
    )
}
"""What to do with architectures that are refused though a part of them is supported."""

_PROVENANCE = """
    _name_or_path _commit_hash transformers_version tokenizer_class is_llama_config
    transformers.js_config unsloth_fixed unsloth_version
"""
_RUNNING_ELSEWHERE = """
    use_cache return_dict output_attentions output_hidden_states output_scores
    return_dict_in_generate torchscript use_bfloat16 tf_legacy_loss chunk_size_feed_forward
    _attn_implementation_autoset is_decoder
"""
_TRAINING = """
    initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop
    neftune_noise_alpha finetuning_task problem_type id2label label2id num_labels
    task_specific_params
"""
_TOKENS_OF_PADDING_AND_TOKENIZERS = """
    pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id decoder_start_token_id prefix
"""
# How to sample is for each request to say.
_SAMPLING_DEFAULTS = """
    max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
    forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
"""
IDLE_FIELDS: Final = frozenset(
    (
        _PROVENANCE
        + _RUNNING_ELSEWHERE
        + _TRAINING
        + _TOKENS_OF_PADDING_AND_TOKENIZERS
        + _SAMPLING_DEFAULTS
    ).split()
)
"""Fields that do not change logits, whatever their value."""

_ONLY: Final[tuple[tuple[str, object, str], ...]] = (
    ("pretraining_tp", 1, "must be 1: sliced linear layers are not supported"),
    ("is_encoder_decoder", False, "must be false: Penstock serves decoder-only models"),
    ("tie_encoder_decoder", False, "must be false: Penstock serves decoder-only models"),
    ("add_cross_attention", False, "must be false: cross-attention is not supported"),
    ("cross_attention_hidden_size", None, "must be null: cross-attention is not supported"),
    ("pruned_heads", {}, "must be empty: pruned heads are not supported"),
    ("rope_interleaved", False, "must be false: interleaved rotation is not supported"),
)


def read_spec(
    config: Mapping[str, object],
    *,
    generation: Mapping[str, object] | None = None,
    default_dtype: DType | None = None,
    where: str = "config.json",
) -> ModelSpec:
    """The model that a Hugging Face ``config.json`` describes.

    ``generation`` is ``generation_config.json``, whose end-of-sequence ids count too.
    ``default_dtype`` is used where the configuration names none. Raises
    :class:`~penstock.errors.ModelError`, naming ``where``, for architectures, fields and values
    that Penstock does not know.
    """
    reader = ConfigReader(config, where)
    family = _find_family(reader)
    refuse_unsupported(reader, family.own_code, family.idle)
    dtype = read_dtype(reader) or default_dtype
    if dtype is None:
        raise reader.error("dtype", "is required: float32, bfloat16 or float16")
    quantized = read_quantized(reader)
    spec = replace(family.read(reader, dtype), quantized=quantized)
    if spec.names is None:
        spec = replace(spec, names=family.names)
    reader.finish(IDLE_FIELDS | family.idle)
    if generation is not None:
        more = ConfigReader(generation, where.replace("config.json", "generation_config.json"))
        eos = more.integers("eos_token_id", high=spec.vocab_size - 1)
        merged = tuple(dict.fromkeys(spec.eos_token_ids + eos))
        spec = replace(spec, eos_token_ids=merged)
    return spec


def refuse_unsupported(
    reader: ConfigReader, own_code: Collection[str] = (), idle: Collection[str] = ()
) -> None:
    """Raise ModelError for values of common fields that no family supports.

    ``own_code``: classes of the checkpoint's own that ``auto_map`` may name, alone or behind the
    repository that has them and ``--``. ``idle``: fields that change nothing here.
    """
    for name, value, why in _ONLY:
        if name not in idle:
            reader.only(name, value, why)
    code = reader.raw("auto_map")
    # A tokenizer is read from tokenizer.json, whatever code would have read it.
    known = isinstance(code, dict) and all(
        kind == "AutoTokenizer" or (isinstance(name, str) and name.split("--")[-1] in own_code)
        for kind, name in code.items()
    )
    if code is not None and not (own_code and known):
        raise reader.error(
            "auto_map", "names code that the checkpoint brings along, which Penstock does not run"
        )


def _find_family(config: ConfigReader) -> Family:
    names = config.texts("architectures")
    supported = f"supported are {', '.join(FAMILIES)}"
    if not names:
        raise config.error("architectures", f"must name the model's architecture; {supported}")
    if len(names) > 1:
        raise config.error("architectures", "must name one architecture")
    family = FAMILIES.get(names[0])
    if family is None:
        hint = _INSTEAD.get(names[0])
        raise config.error("architectures", f"is not supported; {hint or supported}")
    named = config.text("model_type", family.model_type)
    if named != family.model_type and named not in family.other_types:
        raise config.error(
            "model_type", f"contradicts {family.architecture}, which is {family.model_type!r}"
        )
    return family
