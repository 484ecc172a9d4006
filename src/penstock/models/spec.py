"""A model as data: what its blocks are, not how they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import ml_dtypes
import numpy as np

from penstock.cache.geometry import Chunk, Window, window_size
from penstock.errors import ModelError
from penstock.models.activation import Activation, ClampedSwiglu, Gating, UngatedActivation
from penstock.models.experts_spec import ExpertNorms, ExpertsSpec, Routing, SharedExpertSpec
from penstock.models.mixers_spec import ShortConvSpec
from penstock.models.names import NameMap, Published
from penstock.models.position_scale import PositionScale
from penstock.models.quantized import QuantizedFormat
from penstock.models.rope_spec import RopeKind, RopeSpec
from penstock.models.state_spec import GatedDeltaSpec, SelectiveSpec, StateSpec
from penstock.models.token_inputs_spec import TokenInputsSpec
from penstock.sampling.defaults import SamplingDefaults

__all__ = [
    "Activation",
    "AlibiSpec",
    "AttentionSpec",
    "Chunk",
    "ClampSpec",
    "ClampedSwiglu",
    "DType",
    "EmbeddingScale",
    "ExpertNorms",
    "ExpertsSpec",
    "GatedDeltaSpec",
    "Gating",
    "LatentSpec",
    "LayerSpec",
    "Mixer",
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
]

DType = Literal["float32", "bfloat16", "float16"]
NormKind = Literal["rms", "layer"]
Projection = Literal["q", "k", "v"]


@dataclass(frozen=True)
class NormSpec:
    """The norm of a row: by its root mean square, or by its mean and variance (LayerNorm).

    A family whose checkpoints store a norm's weight less 1 says so of the weight, not here.
    """

    eps: float
    kind: NormKind = "rms"
    bias: bool = False
    """Whether a LayerNorm adds a bias. An RMS norm has none."""
    weight: bool = True
    """Whether what is normed is multiplied by a weight, component by component."""

    def __post_init__(self) -> None:
        if self.bias and self.kind == "rms":
            raise ModelError("an RMS norm has no bias")


@dataclass(frozen=True)
class QkNormSpec:
    """Norms of queries and of keys, by weights of their own.

    Raises ModelError where an RMS norm is to have a bias, or heads that are not normed by
    themselves weights of their own.
    """

    eps: float
    over: Literal["head", "projection"] = "head"
    """What is normed at a time: a head's components, all heads by one weight ``[head_dim]``, or
    all columns of the projection, by a weight for each."""
    kind: NormKind = "rms"
    weight: bool = True
    bias: bool = False
    """Whether a LayerNorm adds a bias, of the shape of its weight."""
    each_head: bool = False
    """Whether heads have weights of their own, ``[heads, head_dim]``."""
    after_rope: bool = False
    """Whether queries and keys are normed behind their rotation; else before it."""

    def __post_init__(self) -> None:
        if self.bias and self.kind == "rms":
            raise ModelError("an RMS norm of queries and keys has no bias")
        if self.each_head and self.over != "head":
            raise ModelError("heads that are normed together have no weights of their own")


@dataclass(frozen=True)
class LatentSpec:
    """Keys and values that are made of latents (MLA, arXiv 2405.04434).

    A token has one latent of ``kv_rank`` numbers, which are normed, and one key of ``rope_dim``,
    which is rotated. These two are cached. All heads share them: a head's key is
    ``[up(latent), rotated key]`` with a matrix ``[nope_dim, kv_rank]`` of its own, and its value
    another such product, of ``v_dim``. Its query has as many components as its key, of which the
    last ``rope_dim`` are rotated.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None
    """Queries are made of a latent of this size, which is normed; None: of the hidden state."""
    eps: float = 1e-6
    """The epsilon of both latents' RMS norms."""
    bias: bool = False
    """Whether the products that give latents and the rotated key have biases."""

    @property
    def key_dim(self) -> int:
        """Components of a token's latent and rotated key together."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True)
class AlibiSpec:
    """Scores that fall with distance, by a slope for each head (ALiBi, arXiv 2108.12409)."""

    factor: float = 1.0
    """What products of slopes and positions are multiplied by."""
    rounded: bool = False
    """Whether slopes and positions, and then their products, are rounded to bfloat16 before."""


@dataclass(frozen=True)
class ClampSpec:
    """Queries, keys and values that are clamped to ``-limit .. limit``."""

    limit: float
    behind_norms: bool = False
    """Whether queries and keys are clamped behind their norms, else as they are projected."""


@dataclass(frozen=True)
class AttentionSpec:
    """How the tokens of a layer attend to those before them.

    Raises ModelError where heads cannot be shared, and for what contradicts itself or is without
    effect.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    """None: queries and keys are not rotated."""
    scale: float
    window: Window | None = None
    """A number: a token attends to itself and the ``window - 1`` tokens before it. A
    :class:`~penstock.cache.geometry.Chunk`: to those of its chunk alone, of ``size`` positions from
    0 on, up to itself. None: to all tokens before it."""
    qkv_bias: bool | tuple[Projection, ...] = False
    """Which projections have biases: all three, none, or those named."""
    output_bias: bool = False
    qk_norm: QkNormSpec | None = None
    alibi: AlibiSpec | None = None
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    sinks: bool = False
    """Whether each head has a learned score that takes part in the softmax and has no value."""
    kv_from: int | None = None
    """The layer before this one whose keys and values are read; None: the layer's own."""
    key_is_value: bool = False
    """Whether values are made of the projection of keys, before its norm, and have none."""
    clamp: ClampSpec | None = None
    v_norm: NormSpec | None = None
    """The norm of each head of the values, by one weight ``[head_dim]`` if by any."""
    position_scale: PositionScale | None = None
    """What queries, rotated and normed, are multiplied by."""
    output_gate: bool = False
    """Whether what attention gives is multiplied by the sigmoid of a projection of the layer's
    input (weight ``attn_gate``, with a bias where queries have one)."""
    latent: LatentSpec | None = None
    """Where keys and values are made of latents. Then there is one KV head of
    ``latent.key_dim`` components, heads are not normed, and scores have no slopes."""

    def __post_init__(self) -> None:
        if self.window is not None and window_size(self.window) < 1:
            raise ModelError("windows and chunks have at least one token")
        behind = self.clamp is not None and self.clamp.behind_norms
        if behind and (self.qk_norm is None or self.qk_norm.after_rope):
            raise ModelError(
                "queries and keys cannot be clamped behind norms that do not stand before rotation"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"{self.num_heads} heads cannot share {self.num_kv_heads} KV heads")
        latent = self.latent
        if latent is None:
            if self.rope is not None and self.rope.dim > self.head_dim:
                raise ModelError(
                    f"{self.rope.dim} components of a head rotate, and it has {self.head_dim}"
                )
            return
        if (self.num_kv_heads, self.head_dim) != (1, latent.key_dim):
            raise ModelError(
                f"attention over latents has one KV head of {latent.key_dim} components, not "
                f"{self.num_kv_heads} of {self.head_dim}"
            )
        others = (self.qk_norm, self.v_norm, self.clamp, self.position_scale)
        if self.alibi is not None or self.output_gate or any(each is not None for each in others):
            raise ModelError(
                "heads that attend to latents are not normed, clamped, scaled or gated, and have "
                "no slopes"
            )
        if self.qkv_bias or self.key_is_value:
            raise ModelError("attention over latents has biases of latents, and values of its own")
        if self.rope is not None and self.rope.dim > latent.rope_dim:
            raise ModelError(
                f"{self.rope.dim} components of a head rotate, and attention over latents has "
                f"{latent.rope_dim} for it"
            )

    def has_bias(self, projection: str) -> bool:
        """Whether the projection of queries, keys or values has a bias."""
        if isinstance(self.qkv_bias, bool):
            return self.qkv_bias
        return projection in self.qkv_bias


@dataclass(frozen=True)
class MlpSpec:
    """``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))`` where not gated.

    Raises ModelError for a gated MLP with xIELU.
    """

    intermediate_size: int
    activation: UngatedActivation = "silu"
    bias: bool = False
    gated: bool = True

    def __post_init__(self) -> None:
        if self.gated and self.activation == "xielu":
            raise ModelError("xIELU is of MLPs that are not gated")


Mixer = AttentionSpec | ShortConvSpec | StateSpec
"""What makes a token's row depend on the tokens before it."""


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

    mixer: Mixer | None
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
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that is known to attend.

        Raises ModelError where it does not.
        """
        if not isinstance(self.mixer, AttentionSpec):
            raise ModelError("the layer has no attention")
        return self.mixer


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

    @property
    def keeps_states(self) -> bool:
        """Whether layers keep a state of a sequence that is not the keys and values of tokens."""
        return any(isinstance(layer.mixer, StateSpec) for layer in self.layers)

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
            reader = layer.mixer
            if not isinstance(reader, AttentionSpec) or reader.kv_from is None:
                continue
            source = self.layers[reader.kv_from].mixer if 0 <= reader.kv_from < index else None
            if not isinstance(source, AttentionSpec) or not _same_cache(source, reader):
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
