"""The layout of the KV cache's pages in the native executor."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.plan import Plan


@dataclass(frozen=True)
class KvPages:
    """Pages cut into ``parts`` of ``part_bytes``, each part of all pages in a memory of its own.

    Where all layers take equally many bytes each has a part, so that its blocks lie one behind the
    other: pages of whole layers lie at distances at which many lines of a processor's caches fall
    on each other. Where they differ there is one part, and a layer has a place in it.
    """

    parts: int
    part_bytes: int
    layers: tuple[tuple[int, int, int, int, int, int, int], ...]
    """KV heads, head size, group, part, the offset in the part, the size of values in a cache of
    latents or 0, and the rows of a block in a cache of rows or 0, of each layer."""

    @property
    def movable(self) -> bool:
        """Whether the native executor moves slots: heads are of one kind in all layers, and none
        has rows."""
        kinds = {(head_dim, value_dim) for _, head_dim, *_, value_dim, _ in self.layers}
        return len(kinds) <= 1 and not any(rows for *_, rows in self.layers)

    @classmethod
    def of(cls, plan: Plan) -> KvPages:
        groups = plan.kv_groups
        sizes = {layer.block_bytes(plan.kv_dtype) for layer in plan.kv_layers}
        alike = len(sizes) == 1
        layers = tuple(
            (
                layer.kv_heads,
                layer.head_dim,
                place.group,
                place.index if alike else 0,
                0 if alike else place.offset,
                layer.value_dim or 0,
                layer.rows or 0,
            )
            for layer, place in zip(plan.kv_layers, groups.places, strict=True)
        )
        if not layers:
            return cls(0, 0, ())
        if alike:
            (size,) = sizes
            return cls(groups.page_bytes // size, size, layers)
        return cls(1, groups.page_bytes, layers)
