"""A model as data: what its blocks are, not how they run."""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from penstock.cache.geometry import Chunk, Window
from penstock.dtypes import DType
from penstock.errors import ModelError
from penstock.models.activation import Activation, ClampedSwiglu, Gating, UngatedActivation
from penstock.models.attention_spec import (
    AlibiSpec,
    AttentionSpec,
    ClampSpec,
    LatentSpec,
    NormKind,
    NormSpec,
    Projection,
    QkNormSpec,
)
from penstock.models.experts_spec import ExpertNorms, ExpertsSpec, Routing, SharedExpertSpec
from penstock.models.mixers_spec import Mixer, MixerSum, ShortConvSpec
from penstock.models.names import NameMap, Published
from penstock.models.position_scale import PositionScale
from penstock.models.quantized import QuantizedFormat
from penstock.models.rope_spec import RopeKind, RopeSpec
from penstock.models.state_spec import GatedDeltaSpec, SelectiveSpec, StateSpec
from penstock.models.token_inputs_spec import TokenInputsSpec
from penstock.pooling.labels import Labels
from penstock.sampling.defaults import SamplingDefaults

__all__ = [
    "Activation",
    "AlibiSpec",
    "AttentionSpec",
    "Chunk",
    "ClampSpec",
    "ClampedSwiglu",
    "ClassifierSpec",
    "DType",
    "EmbeddingScale",
    "ExpertNorms",
    "ExpertsSpec",
    "GatedDeltaSpec",
    "Gating",
    "LatentSpec",
    "LayerSpec",
    "Mixer",
    "MixerSum",
    "MlpSpec",
    "ModelSpec",
    "NormKind",
    "NormSpec",
    "PositionScale",
    "PositionTable",
    "Projection",
    "QkNormSpec",
    "RopeKind",
    "RopeSpec",
    "Routing",
    "SelectiveSpec",
    "SharedExpertSpec",
    "ShortConvSpec",
    "StateSpec",
    "TokenInputsSpec",
    "UngatedActivation",
    "Window",
    "attention_of",
]


@dataclass(frozen=True)
class MlpSpec:
    """``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))`` where not gated.

    Raises ModelError for a gated MLP with xIELU, and for a factor of a gate that is not there.
    """

    intermediate_size: int
    activation: UngatedActivation = "silu"
    bias: bool = False
    gated: bool = True
    gate_factor: float = 1.0
    """What ``gate(x)`` is multiplied by."""
    output_factor: float = 1.0
    """What the MLP's output is multiplied by."""

    def __post_init__(self) -> None:
        if self.gated and self.activation == "xielu":
            raise ModelError("xIELU is of MLPs that are not gated")
        if not self.gated and self.gate_factor != 1.0:
            raise ModelError("an MLP without a gate has no factor of it")


@dataclass(frozen=True)
class LayerSpec:
    """A residual layer: what mixes tokens and an MLP, each added to the residual stream x.

    One after the other: ``x += s * post(mixer(pre(x)))``, then ``x += s * post(mlp(pre(x)))``,
    with norms of its own for each, any of which may be missing, and ``s = residual_scale``. A layer
    may have one of the two alone.

    ``parallel``: both read the x at the layer's input, and both are added to it then. An MLP
    without ``mlp_norm`` reads what the mixer reads.

    Raises ModelError for a layer of no parts, one part in parallel, and norms of a part that is
    missing.
    """

    mixer: Mixer | MixerSum | None
    """None: the layer is an MLP alone."""
    mlp: MlpSpec | ExpertsSpec | None
    """None: the layer mixes tokens and has no MLP."""
    attn_norm: NormSpec | None
    """The norm before attention, or another mixer."""
    mlp_norm: NormSpec | None
    """The norm before the MLP."""
    attn_post_norm: NormSpec | None = None
    """The norm of what the mixer adds to the residual stream."""
    mlp_post_norm: NormSpec | None = None
    parallel: bool = False
    residual_scale: float = 1.0
    output_scale: bool = False
    """Whether the residual stream that leaves the layer is multiplied by a learned number
    (``layers.3.output_scale``)."""

    def __post_init__(self) -> None:
        if self.mixer is None and self.mlp is None:
            raise ModelError("a layer has a mixer, an MLP or both")
        if self.parallel and (self.mixer is None or self.mlp is None):
            raise ModelError("a layer of one part has nothing to run in parallel")
        if self.mixer is None and (self.attn_norm or self.attn_post_norm):
            raise ModelError("a layer without a mixer has no norms of it")
        if self.mlp is None and (self.mlp_norm or self.mlp_post_norm):
            raise ModelError("a layer without an MLP has no norms of it")

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that mix tokens: none, one, or several side by side."""
        if isinstance(self.mixer, MixerSum):
            return self.mixer.mixers
        return () if self.mixer is None else (self.mixer,)

    @property
    def attention(self) -> AttentionSpec:
        """The attention of a layer that is known to attend.

        Raises ModelError where it does not.
        """
        attention = attention_of(self)
        if attention is None:
            raise ModelError("the layer has no attention")
        return attention


def attention_of(layer: LayerSpec) -> AttentionSpec | None:
    """The attention of a layer, alone or beside other mixers."""
    return next((each for each in layer.mixers if isinstance(each, AttentionSpec)), None)


@dataclass(frozen=True)
class EmbeddingScale:
    """What embeddings are multiplied by."""

    factor: float
    rounded: bool = False
    """Whether the factor is rounded to the type in which the weights are served."""

    def in_type(self, dtype: DType) -> float:
        """The factor for weights of this type."""
        if not self.rounded:
            return self.factor
        kinds = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
        return float(kinds[dtype](np.float32(self.factor)))  # by way of float32, as torch does


@dataclass(frozen=True)
class PositionTable:
    """A table of learned position embeddings, one of which is added to each token's."""

    rows: int
    offset: int = 0
    """The row of position 0."""


@dataclass(frozen=True)
class ClassifierSpec:
    """What a model that classifies has in the place of its output matrix: a row for each label, of
    which the last token of a text makes a logit each."""

    labels: Labels
    tokens: tuple[int, ...] = ()
    """The rows of the language model's own output matrix that the labels have, and no others are
    computed; empty: the checkpoint has a matrix of them, ``score``, without a bias."""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model.

    Raises ModelError where a layer reads keys and values of a layer that has none like it, and
    where the table of positions has not all of them.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    tie_embeddings: bool
    max_positions: int
    dtype: DType  # as stored in the checkpoint
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    names: NameMap | None = None
    """What the checkpoint calls the weights; None: as the plan does."""
    quantized: QuantizedFormat | None = None
    """How the checkpoint keeps matrices that it has quantized, if it has."""
    embedding_scale: EmbeddingScale | None = None
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    """Logits, once scaled, become ``logits_softcap * tanh(logits / logits_softcap)``."""
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    """How its makers recommend to sample."""
    notes: tuple[str, ...] = ()
    """What users should know of how the configuration was read, a line each."""
    head_bias: bool = False
    """Whether the output matrix has a bias (``head.bias``), added before the logits are scaled."""
    token_inputs: TokenInputsSpec | None = None
    """What each layer is given of a token besides the residual stream; None: nothing."""
    learned_positions: PositionTable | None = None
    """Added to embeddings once these are scaled (weight ``positions``)."""
    embed_norm: NormSpec | None = None
    """The norm of embeddings, positions added, before the first layer."""
    classifier: ClassifierSpec | None = None
    """Set where the model classifies texts, and generates none."""

    @property
    def keeps_states(self) -> bool:
        """Whether layers keep a state of a sequence that is not the keys and values of tokens."""
        return any(isinstance(each, StateSpec) for layer in self.layers for each in layer.mixers)

    @property
    def caches_keys(self) -> bool:
        """Whether layers keep keys and values of tokens, and not latents or a state alone."""
        mixers = (each for layer in self.layers for each in layer.mixers)
        return any(isinstance(each, AttentionSpec) and each.latent is None for each in mixers)

    @property
    def published(self) -> Published:
        """The files and the spellings in which the checkpoint is published."""
        return "model" if self.names is None else self.names.published

    def __post_init__(self) -> None:
        table = self.learned_positions
        if table is not None and table.offset + self.max_positions > table.rows:
            raise ModelError(
                f"a table of {table.rows} position embeddings, from row {table.offset} on, has not "
                f"all of {self.max_positions} positions"
            )
        for index, layer in enumerate(self.layers):
            reader = attention_of(layer)
            if reader is None or reader.kv_from is None:
                continue
            before = 0 <= reader.kv_from < index
            source = attention_of(self.layers[reader.kv_from]) if before else None
            if source is None or not _same_cache(source, reader):
                raise ModelError(
                    f"layer {index} reads keys and values of layer {reader.kv_from}, which must "
                    "come before it and have its own, of the same heads and window"
                )


def _same_cache(a: AttentionSpec, b: AttentionSpec) -> bool:
    same = all(
        getattr(a, name) == getattr(b, name) for name in ("num_kv_heads", "head_dim", "window")
    )
    ranks = [None if x.latent is None else x.latent.kv_rank for x in (a, b)]
    return same and ranks[0] == ranks[1] and a.kv_from is None
