"""Which layers' keys and values a page holds on a GPU. Imports no torch: asked before binding."""

from __future__ import annotations

from penstock.plan.kv_groups import KvLayer
from penstock.plan.plan import Plan

HEAD_DIMS = range(8, 257)
"""Components of a head that attention handles."""


def unreadable(plan: Plan) -> str | None:
    """Say why no kernel reads the KV cache of ``plan``; None where kernels do."""
    if any(layer.value_dim is not None for layer in plan.kv_layers):
        return "no kernel reads a KV cache of latents yet"
    if any(layer.rows is not None for layer in plan.kv_layers):
        return "no kernel runs its convolutions (ShortConv), whose inputs are cached, yet"
    for layer in plan.kv_layers:
        if layer.head_dim not in HEAD_DIMS:
            return f"a head of {layer.head_dim} is outside 8..256, which attention handles"
    kinds = {(each.kv_heads, each.head_dim) for each in plan.kv_layers}
    if len(plan.kv_groups) > 1 and len(kinds) > 1:
        return "layers of several windows have KV caches of different sizes"
    return None


def page_layers(plan: Plan) -> tuple[KvLayer, ...]:
    """The layers whose keys and values a page holds: one for each place.

    Layers of several groups at one place share its memory, of which a block belongs to one group at
    a time. Raises ValueError where a layer's cache is of a kind that no kernel reads.
    """
    reason = unreadable(plan)
    if reason is not None:
        raise ValueError(reason)
    if not plan.kv_groups.groups:
        return ()
    largest = max(plan.kv_groups, key=lambda group: len(group.layers))
    return tuple(plan.kv_layers[number] for number in largest.layers)
