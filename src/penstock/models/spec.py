"""A model as data: what its blocks are, not how they run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.errors import ModelError
from penstock.models.activation import Activation, ClampedSwiglu, Gating, plain_activation
from penstock.models.experts_spec import ExpertsSpec, Routing, SharedExpertSpec
from penstock.models.names import NameMap, Published
from penstock.models.quantized import QuantizedFormat
from penstock.models.rope_spec import RopeKind, RopeSpec
from penstock.sampling.defaults import SamplingDefaults

__all__ = [
    "Activation",
    "AttentionSpec",
    "ClampedSwiglu",
    "DType",
    "EmbeddingScale",
    "ExpertsSpec",
    "Gating",
    "LayerSpec",
    "MlpSpec",
    "ModelSpec",
    "NormKind",
    "NormSpec",
    "Projection",
    "QkNormSpec",
    "RopeKind",
    "RopeSpec",
    "Routing",
    "SharedExpertSpec",
    "plain_activation",
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


@dataclass(frozen=True)
class QkNormSpec:
    """RMS norms of queries and of keys, before rotation."""

    eps: float
    over: Literal["head", "projection"] = "head"
    """What is normed at a time: a head's components, all heads by one weight ``[head_dim]``, or
    all columns of the projection, by a weight for each."""


@dataclass(frozen=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    """None: queries and keys are not rotated."""
    scale: float
    window: int | None = None
    """Sliding window: a token attends to itself and the ``window - 1`` tokens before it. None: to
    all tokens before it."""
    qkv_bias: bool | tuple[Projection, ...] = False
    """Which projections have biases: all three, none, or those named."""
    output_bias: bool = False
    qk_norm: QkNormSpec | None = None
    alibi: bool = False
    """Whether scores fall with distance, by a slope for each head (arXiv 2108.12409)."""
    softcap: float | None = None
    """Scores become ``softcap * tanh(score / softcap)``."""
    sinks: bool = False
    """Whether each head has a learned score that takes part in the softmax and has no value."""
    kv_from: int | None = None
    """The layer before this one whose keys and values are read; None: the layer's own."""

    def has_bias(self, projection: str) -> bool:
        """Whether the projection of queries, keys or values has a bias."""
        if isinstance(self.qkv_bias, bool):
            return self.qkv_bias
        return projection in self.qkv_bias


@dataclass(frozen=True)
class MlpSpec:
    """``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))`` where not gated."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True


@dataclass(frozen=True)
class LayerSpec:
    """A residual layer: attention and an MLP, each added to the residual stream x.

    One after the other: ``x += s * post(attention(pre(x)))``, then ``x += s * post(mlp(pre(x)))``,
    with norms of its own for each, any of which may be missing, and ``s = residual_scale``.

    ``parallel``: both read the x at the layer's input, and both are added to it then. An MLP
    without ``mlp_norm`` reads what attention reads.
    """

    attention: AttentionSpec
    mlp: MlpSpec | ExpertsSpec
    attn_norm: NormSpec | None
    """The norm before attention."""
    mlp_norm: NormSpec | None
    """The norm before the MLP."""
    attn_post_norm: NormSpec | None = None
    """The norm of what attention adds to the residual stream."""
    mlp_post_norm: NormSpec | None = None
    parallel: bool = False
    residual_scale: float = 1.0


@dataclass(frozen=True)
class EmbeddingScale:
    """What embeddings are multiplied by."""

    factor: float
    rounded: bool = False
    """Whether the factor is rounded to the type in which the weights are served."""


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer.

    Raises ModelError where a layer reads keys and values of a layer that has none like it.
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

    @property
    def published(self) -> Published:
        """The files and the spellings in which the checkpoint is published."""
        return "model" if self.names is None else self.names.published

    def __post_init__(self) -> None:
        for index, layer in enumerate(self.layers):
            source = layer.attention.kv_from
            if source is None:
                continue
            if not 0 <= source < index or not _same_cache(self.layers[source], layer):
                raise ModelError(
                    f"layer {index} reads keys and values of layer {source}, which must come "
                    "before it and have its own, of the same heads and window"
                )


def _same_cache(source: LayerSpec, reader: LayerSpec) -> bool:
    a, b = source.attention, reader.attention
    same = (a.num_kv_heads, a.head_dim, a.window) == (b.num_kv_heads, b.head_dim, b.window)
    return same and a.kv_from is None
