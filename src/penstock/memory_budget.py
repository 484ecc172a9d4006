"""What the weights take of memory, and what that leaves for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.gpu import Gpu
from penstock.interface.budget import Budget
from penstock.models.spec import DType, ModelSpec
from penstock.quant.memory import weight_bytes
from penstock.quant.scheme import Quantization

KV_SHARE = 0.5
"""Share of the host's memory left beside the weights that an unstated KV budget may take."""


@dataclass(frozen=True)
class Served:
    """The properties of a served model on which memory use depends."""

    spec: ModelSpec
    dtype: DType
    kv_dtype: KvDType
    quantization: Quantization
    max_len: int
    max_sequences: int
    max_tokens: int
    max_logit_rows: int
    block_bytes: int
    """Bytes of one block of the KV cache, including the draft model's share if there is one."""
    deterministic: bool
    taps: tuple[int, ...] = ()
    """Layers whose input hidden states are given to the draft heads."""

    @property
    def all_sequences_bytes(self) -> int:
        """Bytes of a KV cache that holds every sequence at its maximum length."""
        return self.max_sequences * -(-self.max_len // BLOCK_SIZE) * self.block_bytes


def host_budget(served: Served, asked: int | None, available: int) -> Budget:
    """Divide the host's ``available`` bytes; ``asked`` is the cache size that the user set, if
    any."""
    weights = weight_bytes(served.spec, served.dtype, served.quantization)
    if asked is not None:
        return Budget(weights, asked, "as asked")
    free = max(0, available - weights)
    kv_bytes = min(served.all_sequences_bytes, int(free * KV_SHARE))
    if kv_bytes == served.all_sequences_bytes:
        why = f"{served.max_sequences} sequences of {served.max_len} tokens"
    else:
        why = f"half of the {free / 2**30:.1f} GiB left beside the weights"
    return Budget(weights, kv_bytes, why)


def gpu_budget(served: Served, asked: int | None, gpu: Gpu, draft: Served | None = None) -> Budget:
    """Divide a GPU's free memory; raises ConfigError if the model, with its draft, does not fit."""
    from penstock.backends.cuda.memory import divide, needs
    from penstock.interface.executor import Limits
    from penstock.plan.fuse import fuse
    from penstock.plan.lower import lower
    from penstock.plan.plan import Plan

    def plan_of(model: Served, quantization: Quantization) -> Plan:
        return fuse(
            lower(
                model.spec,
                model.dtype,
                model.max_len,
                quantization,
                model.kv_dtype,
                taps=model.taps,
                half=True,
            )
        )

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
        lambda quantization: plan_of(served, quantization),
        served.quantization,
        limits_of(served),
        gpu.memory_free,
        asked,
        served.all_sequences_bytes,
        None if draft is None else needs(plan_of(draft, draft.quantization), limits_of(draft)),
    )
