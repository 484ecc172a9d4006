"""Which layers' keys are centered and scaled, component by component, before they are rounded.

Four bits with one scale for a head are coarse where some of a head's components have means far from
0, or are large in keys and small in queries. So an INT4 cache keeps ``(k - center) / factor``, and
queries are multiplied by the factor. Their product is that of before but for what the query makes
of the center, which is the same number for all keys that a query sees: a softmax cancels it. Both
are of a text that the model reads at its first start (``engine/calibration.py``). The divergence of
SmolLM2 135M falls to two thirds, that of Gemma 3 270M to a sixth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.plan.kv_groups import KvLayer
from penstock.plan.ops import Attention, Op


@dataclass(frozen=True)
class KeyColumns:
    """The centers and factors of a cached layer's keys.

    As a weight they are float32 ``[2, kv_heads * head_dim]``, centers first. No checkpoint has
    them: they are measured before weights are read, and packed and kept with these.
    """

    layer: int
    """Index into ``Plan.kv_layers``."""
    kv_heads: int
    head_dim: int
    centered: bool
    """Whether centers may be other than 0: not where scores are capped, or beside a sink, since the
    number that they lack then changes the result."""

    @property
    def name(self) -> str:
        """What backends ask for them by, as for a weight."""
        return f"key_columns.{self.layer}"

    @property
    def size(self) -> int:
        """Number of centers and factors."""
        return 2 * self.kv_heads * self.head_dim


def key_columns(ops: Sequence[Op], kv_layers: Sequence[KvLayer]) -> tuple[KeyColumns, ...]:
    """Return those of a plan with these ops and cached layers: one for each layer of keys and
    values, none for latents and rows."""
    found = []
    for number, layer in enumerate(kv_layers):
        if layer.rows is None and layer.value_dim is None:
            readers = [op for op in ops if isinstance(op, Attention) and op.layer == number]
            centered = not any(op.softcap or op.sinks for op in readers)
            found.append(KeyColumns(number, layer.kv_heads, layer.head_dim, centered))
    return tuple(found)
