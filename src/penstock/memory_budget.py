"""What the weights take of memory, and what that leaves for the KV cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE
from penstock.gpu import Gpu
from penstock.interface.budget import Budget
from penstock.plan.plan import Plan
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.scheme import Quantization

KV_SHARE = 0.5
"""Share of the host's memory left beside the weights that an unstated KV budget may take."""


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
    """Bytes of one block of the KV cache, including the draft model's share if there is one."""
    deterministic: bool

    @property
    def all_sequences_bytes(self) -> int:
        """Bytes of a KV cache that holds every sequence at its maximum length."""
        return self.max_sequences * -(-self.max_len // BLOCK_SIZE) * self.block_bytes


def host_budget(served: Served, asked: int | None, available: int) -> Budget:
    """Divide the host's ``available`` bytes; ``asked`` is the cache size that the user set, if
    any."""
    weights = weight_bytes(served.plan)
    if asked is not None:
        return Budget(weights, asked, "as asked")
    free = max(0, available - weights)
    kv_bytes = min(served.all_sequences_bytes, int(free * KV_SHARE))
    if kv_bytes == served.all_sequences_bytes:
        why = f"{served.max_sequences} sequences of {served.max_len} tokens"
    else:
        why = f"half of the {free / 2**30:.1f} GiB left beside the weights"
    return Budget(weights, kv_bytes, why)


def gpu_budget(
    served: Served,
    asked: int | None,
    gpu: Gpu,
    draft: Served | None,
    plan_with: Callable[[Quantization], Plan],
) -> Budget:
    """Divide a GPU's free memory; raises ConfigError if the model, with its draft, does not fit.

    ``plan_with`` makes the plan that the model would have with its weights quantized otherwise.
    """
    from penstock.backends.cuda.memory import divide, needs
    from penstock.interface.executor import Limits

    def limits_of(model: Served) -> Limits:
        return Limits(
            num_blocks=0,
            max_tokens=model.max_tokens,
            max_logit_rows=model.max_logit_rows,
            max_hidden_rows=model.max_tokens,
            max_sequences=model.max_sequences,
            threads=1,
            deterministic=model.deterministic,
        )

    return divide(
        served.plan,
        plan_with,
        limits_of(served),
        gpu.memory_free,
        asked,
        served.all_sequences_bytes,
        None if draft is None else needs(draft.plan, limits_of(draft)),
    )
