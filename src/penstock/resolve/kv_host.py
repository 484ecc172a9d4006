"""Decides how much of the host's memory holds blocks of a GPU's KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.resolve.backend import BackendDecision
from penstock.resolve.inputs import Inputs, Reasons
from penstock.resolve.memory import MemoryDecision

RESERVE: Final = 1 << 30
"""Bytes of the host's memory that are left for the engine's process itself: torch and the driver
take some hundreds of megabytes, and weights pass through in pieces."""


@dataclass(frozen=True)
class KvHostDecision:
    """The memory of the host below the KV cache."""

    bytes: int
    reasons: Reasons
    """Empty where there is none."""


def decide_kv_host(
    inputs: Inputs, backend: BackendDecision, memory: MemoryDecision
) -> KvHostDecision:
    """Return the bytes asked for. Raises ConfigError where the pool itself is the host's memory,
    and where there is not so much of it."""
    config = inputs.config
    asked = config.kv_host_bytes
    if asked is None:
        return KvHostDecision(0, {})
    if not backend.backend.on_gpu:
        raise ConfigError(
            f"the KV cache of the {backend.backend.name} backend is the host's memory already; in "
            f"place of kv_host_bytes {asked:,}, set kv_cache_bytes to more (it is "
            f"{memory.kv_cache_bytes:,})"
        )
    if not config.enable_prefix_caching:
        raise ConfigError(
            "kv_host_bytes finds blocks by their content, as prefix caching does; leave one of "
            "both out"
        )
    if asked < 1:
        raise ConfigError(f"kv_host_bytes must be at least 1, not {asked}")
    gpu = backend.choice.gpu
    taken = RESERVE
    if gpu is not None and gpu.interpreted:  # whose memory is the host's
        taken += memory.weight_bytes + memory.kv_cache_bytes
    free = inputs.hardware.memory_available
    if asked > free - taken:
        most = f"at most {free - taken:,}" if free > taken else "nothing, and leave it out"
        raise ConfigError(
            f"kv_host_bytes {asked:,} cannot be swapped out, and of the host's memory {free:,} "
            f"bytes are free for this process, {taken:,} of which it takes besides; set it to "
            f"{most}"
        )
    why = (
        "as asked, of the host's memory, which is taken at the start; a prefix is copied from "
        "there where that takes less time than computing it, by the times measured while the "
        "engine runs"
    )
    return KvHostDecision(asked, {"kv_host_bytes": why})
