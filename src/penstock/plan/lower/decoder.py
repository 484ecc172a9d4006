"""Lowering of decoder-only transformers and of their layers."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ModelError
from penstock.models.names import BIAS
from penstock.models.spec import (
    ClassifierSpec,
    GatedDeltaSpec,
    LayerSpec,
    Mixer,
    MixerSum,
    ModelSpec,
    NormSpec,
    SelectiveSpec,
    ShortConvSpec,
)
from penstock.plan.lower.attention import lower_attention
from penstock.plan.lower.builder import RESIDUAL, PlanBuilder
from penstock.plan.lower.declared_weights import LABELS
from penstock.plan.lower.gated_delta import lower_gated_delta
from penstock.plan.lower.latent import lower_latent_attention
from penstock.plan.lower.mlp import lower_mlp
from penstock.plan.lower.selective import lower_selective
from penstock.plan.lower.short_conv import lower_short_conv
from penstock.plan.lower.token_inputs import add_token_input, lower_token_inputs
from penstock.plan.ops import (
    Add,
    BufferName,
    LinearPart,
    Rows,
    Scale,
    ScaleBy,
    SelectRows,
    SoftCap,
    WeightName,
)
from penstock.plan.plan import Plan

TAPS = "taps"


def lower_decoder(build: PlanBuilder, spec: ModelSpec, taps: Sequence[int]) -> Plan:
    """The plan of a model that returns the residual stream at the input of the layers ``taps``."""
    if not spec.layers:
        raise ModelError("the model has no layers; num_hidden_layers must be at least 1")
    for tap in taps:
        if not 0 <= tap < len(spec.layers):
            raise ModelError(
                f"hidden states are wanted at the input of layer {tap}, and the model has "
                f"layers 0 to {len(spec.layers) - 1}"
            )
    tapped = None
    if taps:
        tapped = build.new(TAPS, len(taps) * spec.hidden_size, rows=Rows.SELECTED)
    _embed(build, spec)
    inputs = spec.token_inputs
    given = None if inputs is None else lower_token_inputs(build, inputs, len(spec.layers))
    for index, layer in enumerate(spec.layers):
        at = f"layers.{index}."
        if layer.mixer is None:
            h = build.norm_or_read(at + "g", at + "mlp_norm", layer.mlp_norm)
        else:
            h = build.norm_or_read(at + "h", at + "attn_norm", layer.attn_norm)
        if tapped is not None:
            # Behind the norm: there the residual stream is up to date in the fused plan, too.
            places = [i for i, tap in enumerate(taps) if tap == index]
            build.append(*(SelectRows(RESIDUAL, tapped, i * spec.hidden_size) for i in places))
        lower_layer(build, index, layer, h)
        if inputs is not None and given is not None:
            add_token_input(build, index, inputs, given)
        if layer.output_scale:
            weight = build.weight(at + "output_scale", 1)
            build.append(ScaleBy(RESIDUAL, RESIDUAL, weight))
    last = build.select(RESIDUAL, "last")
    normed = build.norm_or_read("last_normed", "final_norm", spec.final_norm, last)
    if spec.classifier is not None:
        scores = lower_labels(build, spec, spec.classifier, normed)
        return build.finish(scores, build.argmax(scores), scores, tapped)
    matrix = "embed" if spec.tie_embeddings else "head"
    logits = lower_output(build, spec, normed, matrix, spec.vocab_size)
    return build.finish(logits, build.argmax(logits), normed, tapped)


def lower_output(
    build: PlanBuilder, spec: ModelSpec, x: BufferName, matrix: WeightName, outputs: int
) -> BufferName:
    """Logits of x by the output ``matrix``, with the bias, the scale and the cap of ``spec``."""
    logits = build.logits(x, matrix, outputs, bias="head.bias" if spec.head_bias else None)
    _scale_logits(build, spec, logits)
    return logits


def lower_labels(
    build: PlanBuilder, spec: ModelSpec, classifier: ClassifierSpec, x: BufferName
) -> BufferName:
    """The logits of labels, of all selected rows: they are what such a model returns as its hidden
    states. Those of tokens are what the language model would give them."""
    bias = LABELS + BIAS if classifier.tokens and spec.head_bias else None
    scores = build.new("scores", len(classifier.labels.names), rows=Rows.SELECTED)
    part = LinearPart(LABELS, len(classifier.labels.names), bias)
    build.append(build.product(x, scores, part, exact=True))
    if classifier.tokens:
        _scale_logits(build, spec, scores)
    return scores


def _scale_logits(build: PlanBuilder, spec: ModelSpec, logits: BufferName) -> None:
    if spec.logits_scale != 1.0:
        build.append(Scale(logits, logits, spec.logits_scale))
    if spec.logits_softcap is not None:
        build.append(SoftCap(logits, logits, spec.logits_softcap))


def _embed(build: PlanBuilder, spec: ModelSpec) -> None:
    """The residual stream at the input of the first layer."""
    x = RESIDUAL if spec.embed_norm is None else "embedded"
    build.embed(x)
    if spec.embedding_scale is not None:
        build.append(Scale(x, x, spec.embedding_scale.in_type(build.dtype)))
    if spec.learned_positions is not None:
        build.add_positions(x, spec.learned_positions)
    if spec.embed_norm is not None:
        build.norm(RESIDUAL, "embed_norm", spec.embed_norm, x, "float32")


def lower_layer(build: PlanBuilder, index: int, layer: LayerSpec, h: BufferName) -> None:
    """A layer whose first part reads h, from the residual stream to the residual stream."""
    at = f"layers.{index}."

    def add(delta: BufferName, name: str, norm: NormSpec | None) -> None:
        if norm is not None:
            delta = build.norm(f"{at}{name}ed", at + name, norm, delta, "float32")
        build.add(delta, layer.residual_scale)

    mixed, g = None, h
    if layer.mixer is not None:
        mixed = _lower_mixers(build, index, layer.mixer, h)
        if not layer.parallel:
            add(mixed, "attn_post_norm", layer.attn_post_norm)
        if layer.mlp is None:
            return
        if not layer.parallel or layer.mlp_norm is not None:
            g = build.norm_or_read(at + "g", at + "mlp_norm", layer.mlp_norm)
    assert layer.mlp is not None
    made = lower_mlp(build, index, layer.mlp, g)
    if layer.parallel and mixed is not None:
        add(mixed, "attn_post_norm", layer.attn_post_norm)
    add(made, "mlp_post_norm", layer.mlp_post_norm)


def _lower_mixers(
    build: PlanBuilder, index: int, mixer: Mixer | MixerSum, h: BufferName
) -> BufferName:
    """What the one mixer of layer ``index``, or several side by side, make of h."""
    if not isinstance(mixer, MixerSum):
        return _lower_mixer(build, index, mixer, h)
    total: BufferName | None = None
    for each, factor in zip(mixer.mixers, mixer.factors, strict=True):
        made = _lower_mixer(build, index, each, h)
        if factor != 1.0:
            build.append(Scale(made, made, factor))
        if total is None:
            total = made
        else:
            build.append(Add(total, made, total))
    assert total is not None
    return total


def _lower_mixer(build: PlanBuilder, index: int, mixer: Mixer, h: BufferName) -> BufferName:
    """What mixes the tokens of layer ``index``, which reads h; its output projection."""
    if isinstance(mixer, ShortConvSpec):
        return lower_short_conv(build, index, mixer, h)
    if isinstance(mixer, SelectiveSpec):
        return lower_selective(build, index, mixer, h)
    if isinstance(mixer, GatedDeltaSpec):
        return lower_gated_delta(build, index, mixer, h)
    if mixer.latent is not None:
        return lower_latent_attention(build, index, mixer, h)
    return lower_attention(build, index, mixer, h)
