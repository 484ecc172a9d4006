"""Attention as data, and the norms that it shares with layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.cache.geometry import Window, window_size
from penstock.errors import ModelError
from penstock.models.position_scale import PositionScale
from penstock.models.rope_spec import RopeSpec

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
