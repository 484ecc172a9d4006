"""A model as data: what its blocks are, not how they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.models.names import NameMap
from penstock.models.quantized import QuantizedFormat

DType = Literal["float32", "bfloat16", "float16"]
Activation = Literal["silu", "gelu_tanh", "gelu"]
RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding over the first ``dim`` components of a head.

    ``models/rope.py`` turns it into cosine and sine tables per position, so no backend knows a
    scaling kind.
    """

    theta: float
    dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: multiplies cosine and sine
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    interleaved: bool = False
    """Whether neighbouring components are rotated together; else component i and i + dim / 2."""


@dataclass(frozen=True)
class AttentionSpec:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    scale: float
    window: int | None = None
    """Sliding window: a token attends to itself and the ``window - 1`` tokens before it. None: to
    all tokens before it."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head's components of query and key, before rotation."""


@dataclass(frozen=True)
class MlpSpec:
    """``down(activation(gate(x)) * up(x))``."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """Pre-norm residual layer: attention, then the MLP."""

    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tie_embeddings: bool
    max_positions: int
    dtype: DType  # as stored in the checkpoint
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    names: NameMap | None = None
    """What the checkpoint calls the weights; None: as the plan does."""
    quantized: QuantizedFormat | None = None
    """How the checkpoint keeps matrices that it has quantized, if it has."""
