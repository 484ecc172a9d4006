"""Divides the memory of several GPUs whose ranks share a model."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.cuda.memory import RESERVE, gib, needs
from penstock.errors import ConfigError
from penstock.interface.budget import Budget
from penstock.interface.executor import Limits
from penstock.plan.plan import Plan


def divide_among_ranks(
    plans: Sequence[Plan], limits: Limits, free: int, asked: int | None, wanted: int
) -> Budget:
    """What the KV caches of all ranks get together, and their weights take.

    ``plans`` are those of the ranks, fused, and ``free`` the bytes of each one's GPU, which is
    taken to be as that of rank 0: a rank that finds less says so when it allocates. ``asked`` and
    ``wanted`` are as in ``memory.divide``, and count all ranks. All caches have as many blocks, so
    that the rank with the least room beside the rest decides. Raises ConfigError, with the
    arithmetic and what would fit, where it does not.
    """
    every = [needs(plan, limits) for plan in plans]
    pages = [plan.kv_groups.page_bytes for plan in plans]
    # What all take together when this rank has taken what its GPU has.
    rooms = [
        (free - need.total) * sum(pages) // page for need, page in zip(every, pages, strict=True)
    ]
    left = min(rooms)
    rank = rooms.index(left)
    need, weights = every[rank], sum(each.weights for each in every)
    if left <= 0 or (asked is not None and asked > left):
        own = "" if asked is None else f", and {gib(asked * pages[rank] // sum(pages))} of KV cache"
        fits = [f"kv_cache_bytes of at most {left:,}"] if asked is not None and left > 0 else []
        if need.activations > RESERVE:
            fits.append("less max_num_batched_tokens")
        fits.append("more ranks, or weights of fewer bits (quantization)")
        raise ConfigError(
            f"the GPU of each rank has {gib(free)} free, too little on that of rank {rank} for "
            f"{need}{own}; what helps: {', or '.join(fits)}"
        )
    if asked is not None:
        return Budget(weights, asked, "as asked")
    if wanted <= left:
        return Budget(weights, wanted, "what all sequences can fill")
    why = f"what is left on {len(plans)} GPUs of {gib(free)} beside, on that of rank {rank}, {need}"
    return Budget(weights, left, why)
