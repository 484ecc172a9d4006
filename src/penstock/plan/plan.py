"""The plan: what one step of a model runs, before any backend is chosen."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cache.geometry import KvDType
from penstock.models.spec import DType, ModelSpec, RopeSpec
from penstock.plan.ops import Buffer, BufferName, Op


@dataclass(frozen=True)
class KvLayer:
    """Geometry of one layer's cache."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Plan:
    """A straight list of ops over named buffers; the unit that backends bind.

    ``weight_dtype`` is the type of weights in memory, ``kv_dtype`` that of the KV cache; buffers
    carry the element type of activations (bfloat16 where weights are bfloat16, else float32).
    """

    spec: ModelSpec
    weight_dtype: DType
    kv_dtype: KvDType
    ops: tuple[Op, ...]
    buffers: dict[BufferName, Buffer]
    ropes: tuple[RopeSpec, ...]  # distinct tables; ops refer to them by index
    kv_layers: tuple[KvLayer, ...]
    logits: BufferName
    argmax: BufferName
    hidden: BufferName
    """The selected rows after the last norm, as the output matrix reads them."""
    max_positions: int  # rows of the rope tables
