"""Reads the configurations of draft heads: their kind and their layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Literal

from penstock.errors import ModelError
from penstock.interface.source_walks import tensors
from penstock.interface.sources import Stored
from penstock.models.blocks import default_head_dim, read_decoder, read_dtype, uniform_windows
from penstock.models.draft_heads import (
    DRAFT_TO_TARGET,
    DraftHeadsSpec,
    EagleSpec,
    MedusaSpec,
    eagle_names,
    medusa_names,
    of_target,
)
from penstock.models.idle_fields import IDLE_FIELDS
from penstock.models.limits import MAX_HIDDEN, MAX_VOCAB
from penstock.models.reader import ConfigReader
from penstock.models.registry import refuse_unsupported
from penstock.models.spec import ModelSpec

DraftHeadsKind = Literal["medusa", "eagle"]

_MEDUSA_IDLE: Final = frozenset(
    {"architectures", "model_type", "base_model_name_or_path", "version"}
)
_MOST_HEADS: Final = 64
"""No draft tree is deeper."""

_EAGLE_ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "LlamaForCausalLMEagle",
    "LlamaForCausalLMEagle3",
    "EagleLlamaForCausalLM",
    "Eagle3LlamaForCausalLM",
    "Qwen2ForCausalLM",
)
_EAGLE3_FIELDS: Final = ("draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids")
# A head's output matrix is its own, or the target's, whatever is said here.
_EAGLE_IDLE: Final = frozenset(
    {"tie_word_embeddings", "max_window_layers", "base_model_name_or_path"}
)
# Fields of forms that compute otherwise, with the value that changes nothing.
_EAGLE_ONLY: Final[tuple[tuple[str, object], ...]] = (
    ("use_sliding_window", False),
    ("fc_norm", False),
    ("norm_output", False),
)
_EAGLE3_ONLY: Final[tuple[tuple[str, object], ...]] = (
    ("use_aux_hidden_state", True),
    ("use_input_layernorm_in_first_layer", True),
    ("use_last_layernorm", True),
    ("use_mtp_layernorm", False),
    ("parallel_draft_step", 1),
)
_EAGLE3_IDLE: Final = frozenset({"next_layer_regular", "parallel_draft_heads_num_layers"})

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of a checkpoint's tensors, by the names of ``NameMap.published`` "heads"."""


def draft_heads_kind(config: ConfigReader) -> DraftHeadsKind | Literal["either"] | None:
    """Return the kind of draft heads that a configuration is of; None if it is that of an ordinary
    model.

    EAGLE 1 looks like a Llama of one layer: of either, ``names_heads`` tells them apart.
    """
    if config.has("medusa_num_heads"):
        return "medusa"
    names = config.raw("architectures")
    if any(config.has(field) for field in _EAGLE3_FIELDS) or "eagle" in str(names).lower():
        return "eagle"
    return "either" if config.raw("num_hidden_layers") == 1 else None


def names_heads(tensors: Iterable[str]) -> bool:
    """Return whether a checkpoint whose tensors have these names holds an EAGLE head."""
    return "fc.weight" in tensors


def read_draft_heads(
    config: ConfigReader, kind: DraftHeadsKind, target: ModelSpec, shapes: Shapes | None
) -> DraftHeadsSpec:
    """Return the spec of the heads of this kind that ``config`` describes, which draft for
    ``target``.

    ``shapes``: those of the weights, where there are any. They decide what the configuration leaves
    open, and which weights are the target's; else the target decides, and all are the heads' own.
    The dtype is the target's, to which weights are converted. Raises ModelError, naming the field,
    for what Penstock does not know.
    """
    for name in ("dtype", "torch_dtype"):
        if config.has(name):
            read_dtype(config)
    refuse_unsupported(config)
    config.only(
        "quantization_config",
        None,
        "is not supported for heads; use the unquantized ones that these were made from",
    )
    return _medusa(config, shapes, target) if kind == "medusa" else _eagle(config, shapes, target)


def _medusa(config: ConfigReader, shapes: Shapes | None, target: ModelSpec) -> MedusaSpec:
    heads = config.integer("medusa_num_heads", high=_MOST_HEADS)
    blocks = config.integer("medusa_num_layers", 1, low=0, high=_MOST_HEADS)
    output = (shapes or {}).get(f"0.{blocks}.weight", ())
    vocab, hidden = output if len(output) == 2 else (target.vocab_size, target.hidden_size)
    spec = MedusaSpec(
        architecture="Medusa",
        vocab_size=config.integer("vocab_size", vocab, high=MAX_VOCAB),
        hidden_size=config.integer("hidden_size", hidden, high=MAX_HIDDEN),
        layers=(),
        final_norm=None,
        tie_embeddings=False,
        max_positions=target.max_positions,
        dtype=target.dtype,
        names=medusa_names(blocks),
        num_heads=heads,
        num_blocks=blocks,
    )
    config.finish(IDLE_FIELDS | _MEDUSA_IDLE)
    return spec


def _eagle(config: ConfigReader, shapes: Shapes | None, target: ModelSpec) -> EagleSpec:
    names = config.texts("architectures")
    if names is not None and (len(names) != 1 or names[0] not in _EAGLE_ARCHITECTURES):
        known = ", ".join(_EAGLE_ARCHITECTURES)
        raise config.error("architectures", f"is not supported for EAGLE; supported are {known}")
    if config.text("model_type", "llama") not in ("llama", "qwen2"):
        raise config.error("model_type", "is not supported for EAGLE; it must be llama or qwen2")
    if config.integer("num_hidden_layers", 1) != 1:
        raise config.error(
            "num_hidden_layers",
            "must be 1: EAGLE has one layer; an ordinary model drafts with draft:model=FOLDER",
        )
    for name, value in _EAGLE_ONLY:
        config.only(name, value, f"must be {value}: another form of EAGLE, which is not supported")
    config.only("sliding_window", None, "is not supported for EAGLE")
    all_biases = config.boolean("attention_bias", False)
    decoder = read_decoder(
        config,
        "Eagle",
        target.dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("qkv_bias", all_biases),
        output_bias=all_biases,
        mlp_bias=config.boolean("mlp_bias", False),
    )
    # What attention reads is made of features, by norms of the head's own or none.
    (layer,) = decoder.layers
    decoder = replace(decoder, tie_embeddings=False, layers=(replace(layer, attn_norm=None),))
    fields = dict(vars(decoder))
    fields["target_hidden_size"] = config.integer(
        "target_hidden_size", decoder.hidden_size, high=MAX_HIDDEN
    )
    marks = [name for name in _EAGLE3_FIELDS if config.has(name)]
    if marks or "layers.0.hidden_norm.weight" in (shapes or ()) or "eagle3" in str(names).lower():
        fields["architecture"] = "Eagle3"
        config.only("bias", False, "must be false: EAGLE 3 has none")
        vocab = decoder.vocab_size
        outputs = config.optional_integer("draft_vocab_size", high=vocab) or vocab
        fields["names"] = eagle_names("eagle3")
        spec = EagleSpec(
            **fields,
            kind="eagle3",
            num_outputs=outputs,
            taps=_taps(config, len(target.layers)),
            input_norm=layer.mlp_norm,
        )
    else:
        config.only(
            "target_hidden_size",
            decoder.hidden_size,
            "must be hidden_size: EAGLE 1 goes on from the target's hidden states",
        )
        bias = config.boolean("bias", "fc.bias" in shapes if shapes else True)
        fields["final_norm"] = None
        fields["names"] = eagle_names("eagle1")
        spec = EagleSpec(**fields, kind="eagle1", num_outputs=decoder.vocab_size, fc_bias=bias)
    config.finish(IDLE_FIELDS | _EAGLE_IDLE)
    return spec if shapes is None else _as_stored(spec, shapes, target)


def _as_stored(spec: EagleSpec, shapes: Shapes, target: ModelSpec) -> EagleSpec:
    """Return ``spec`` with what the checkpoint's ``shapes`` show.

    They show which weights are the target's (EAGLE 1's output matrix always, and the embedding
    where it is left out), and whether there is a map of tokens.
    """
    whole = spec.num_outputs == spec.vocab_size
    shared: tuple[str, ...] = ("embed", "head") if whole else ("embed",)
    if spec.hidden_size != spec.target_hidden_size:
        shared = ()
    names, shape = spec.names, (spec.vocab_size, spec.hidden_size)
    assert names is not None
    taken = {
        name: of_target(target, name, shape)
        for name in shared
        if any(each.name not in shapes for each in tensors(names.source(name, {name: shape})))
    }
    if "head" in taken:
        spec = replace(
            spec,
            head_bias=target.head_bias,
            logits_scale=target.logits_scale,
            logits_softcap=target.logits_softcap,
        )
        if target.head_bias:
            taken["head.bias"] = of_target(target, "head.bias", (spec.vocab_size,))
    offsets = None
    if spec.kind == "eagle3" and not (whole and DRAFT_TO_TARGET not in shapes):
        offsets = Stored(DRAFT_TO_TARGET, (spec.num_outputs,), "integer")
    names = replace(names, target=taken, target_names=target.names)
    return replace(spec, names=names, token_offsets=offsets)


def _taps(config: ConfigReader, layers: int) -> tuple[int, ...]:
    """Layers whose inputs are features: by default the third, the middle and the last but two.

    A list at the top level names these layers. One within ``eagle_config`` names the layers whose
    outputs are meant, and the output of one is the input of the next.
    """
    taps = config.integers("eagle_aux_hidden_state_layer_ids")
    section = config.section("eagle_config")
    if section is not None:
        for name, value in _EAGLE3_ONLY:
            section.only(name, value, f"must be {value}: another form of EAGLE is not supported")
        inner = tuple(i + 1 for i in section.integers("eagle_aux_hidden_state_layer_ids"))
        section.finish(_EAGLE3_IDLE)
        if taps and inner and taps != inner:
            raise config.error(
                "eagle_aux_hidden_state_layer_ids",
                f"contradicts the list in eagle_config, of the outputs that layers {inner} read",
            )
        taps = taps or inner
    taps = taps or (2, layers // 2, layers - 3)
    outside = [i for i in taps if not 0 <= i < layers]
    if outside:
        raise ModelError(
            f"{config.where}: the heads read the input of layer {outside[0]}, and the model has "
            f"layers 0 to {layers - 1}; take heads that were trained for it"
        )
    return taps
