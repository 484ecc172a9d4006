"""Divides memory between the weights and the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE, Window, sequence_blocks
from penstock.interface.budget import Budget
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.scheme import Quantization

KV_SHARE = 0.5
"""Share of the host's memory left beside the weights that an unstated KV budget may take."""

KEPT_STATES = 4
"""States of prefixes that are kept at most for each sequence that may run."""


@dataclass(frozen=True)
class Served:
    """The properties of a served model on which memory use depends."""

    plan: Plan
    """Fused, and with rope tables for ``max_len`` positions."""
    max_len: int
    max_sequences: int
    max_tokens: int
    max_logit_rows: int
    block_bytes: int
    """Bytes of one block of the KV cache (a page), including the draft model's share if there is
    one."""
    deterministic: bool
    state_bytes: int = 0
    """Bytes of a state slot, where layers keep states."""
    kept_states: int = 0
    """State slots for prefixes, at most, for each sequence that may run."""
    parts: tuple[Plan, ...] = ()
    """What each process of this machine runs of the plan, where several ranks share it or stages
    have its layers: weights take the memory of all of them, as blocks and states do."""

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """The window of each group of cached layers. Blocks of a model that caches none count its
        tokens, for one that drafts for it."""
        return self.plan.kv_groups.windows or (None,)

    @property
    def all_sequences_bytes(self) -> int:
        """Bytes of a KV cache that holds every sequence at its maximum length, and of as many
        states as are ever kept."""
        blocks = self.max_sequences * sequence_blocks(self.windows, self.max_len)
        blocks += self.blocks_behind_windows
        return blocks * self.block_bytes + self.max_states * self.state_bytes

    @property
    def blocks_behind_windows(self) -> int:
        """Blocks beside those of sequences: what a step computes at once is kept until it is done,
        also behind a window."""
        windowed = sum(window is not None for window in self.windows)
        return windowed * -(-min(self.max_tokens, self.max_len) // BLOCK_SIZE)

    @property
    def max_states(self) -> int:
        """State slots of all sequences, and as many for prefixes as are ever kept."""
        return self.max_sequences * (1 + self.kept_states)


@dataclass(frozen=True)
class Demand:
    """What must fit into the memory in which a backend computes."""

    served: Served
    kv_cache_bytes: int | None
    """The size of the KV cache that the user set, if any."""
    draft: Served | None
    """The model or heads that draft, if there are any."""
    plan_with: Callable[[Quantization], Plan]
    """Callback that returns the plan that the model would have if it were quantized so."""
    copies_blocks: bool = False
    """Whether blocks of the KV cache are copied to tiers below it."""


def host_budget(
    demand: Demand, available: int, bytes_of: Callable[[Plan], int] = weight_bytes
) -> Budget:
    """Divide the host's ``available`` bytes; ``bytes_of``: those that a plan's weights take."""
    served = demand.served
    weights = sum(map(bytes_of, served.parts or (served.plan,)))
    if demand.kv_cache_bytes is not None:
        return Budget(weights, demand.kv_cache_bytes, "as asked")
    if demand.draft is not None:
        available -= bytes_of(demand.draft.plan)
    free = max(0, available - weights)
    kv_bytes = min(served.all_sequences_bytes, int(free * KV_SHARE))
    if kv_bytes == served.all_sequences_bytes:
        why = f"{served.max_sequences} sequences of {served.max_len} tokens"
    else:
        why = f"half of the {free / 2**30:.1f} GiB left beside the weights"
    return Budget(weights, kv_bytes, why)
