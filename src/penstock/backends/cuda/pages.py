"""Which layers' keys and values a page holds on a GPU. Imports no torch: asked before binding."""

from __future__ import annotations

from penstock.cache.geometry import KvDType, part_dtypes
from penstock.plan.kv_groups import KvLayer
from penstock.plan.plan import Plan

LATENT_TYPES: tuple[KvDType, ...] = ("float32", "bfloat16", "float16", "int8")
"""Types of latents that attention reads; of keys and values it reads all."""
HEAD_DIMS = range(8, 257)
"""Components of a head that attention handles."""
LATENT_DIMS = range(1, 513)
"""Components of a latent, whose sums a tile holds in registers."""
TAIL_DIMS = range(1, 129)
"""Components of the rotated key behind a latent."""


def unreadable(plan: Plan) -> str | None:
    """Say why no kernel reads the KV cache of ``plan``; None where kernels do."""
    if any(layer.rows is not None for layer in plan.kv_layers):
        return "no kernel runs its convolutions (ShortConv), whose inputs are cached, yet"
    for layer in plan.kv_layers:
        latent = layer.value_dim
        if latent is not None and plan.kv_dtype not in LATENT_TYPES:
            return (
                f"no kernel reads latents of a KV cache in {plan.kv_dtype} (--kv-cache-dtype int8 "
                "is read)"
            )
        if latent is None and "int4" in part_dtypes(plan.kv_dtype) and layer.head_dim % 2:
            return f"heads of a KV cache in {plan.kv_dtype} have an even size, not {layer.head_dim}"
        if latent is None and layer.head_dim not in HEAD_DIMS:
            return f"a head of {layer.head_dim} is outside 8..256, which attention handles"
        if latent is not None and latent not in LATENT_DIMS:
            return f"a latent of {latent} is outside 1..512, which attention handles"
        if latent is not None and layer.head_dim - latent not in TAIL_DIMS:
            tail = f"a rotated key of {layer.head_dim - latent} beside latents"
            return f"{tail} is outside 1..128, which attention handles"
    kinds = {(each.kv_heads, each.head_dim, each.value_dim) for each in plan.kv_layers}
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
