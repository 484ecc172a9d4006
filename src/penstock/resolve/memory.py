"""Decides the size of the KV cache, and with it how long a sequence may become."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE, sequence_blocks, tokens_in
from penstock.errors import ConfigError
from penstock.memory_budget import Demand
from penstock.quant.scheme import Quantization
from penstock.resolve.backend import BackendDecision
from penstock.resolve.inputs import Inputs, Reasons, reason
from penstock.resolve.plans import PlanDecision


@dataclass(frozen=True)
class MemoryDecision:
    """How memory is divided between weights and KV cache, and what the cache can hold."""

    weight_bytes: int
    num_blocks: int
    kv_cache_bytes: int
    """Bytes of these blocks, the draft's part included."""
    max_model_len: int
    reasons: Reasons


@dataclass(frozen=True)
class _Blocks:
    """The blocks of the KV cache."""

    count: int
    tokens: int
    """Length of the longest sequence that all of them can hold."""
    why: str


def decide_memory(
    inputs: Inputs, backend: BackendDecision, schemes: Quantization, plans: PlanDecision
) -> MemoryDecision:
    """Return the division of the memory that the backend computes in."""
    config, served, weights = inputs.config, plans.target, inputs.types.weights
    demand = Demand(served, config.kv_cache_bytes, plans.draft, plans.plan_with)
    budget = backend.backend.budget(demand, backend.choice, inputs.hardware)
    blocks = _blocks(inputs, plans, budget.kv_cache)
    in_full = blocks.tokens >= served.max_len
    rounded = f"codes, scales, and the rest in {weights}"
    reasons = {
        "kv_cache_dtype": reason(config.kv_cache_dtype, "the weights' type"),
        "weight_bytes": f"all in {weights}" if schemes.linear is None else rounded,
        "kv_cache_bytes": reason(config.kv_cache_bytes, budget.why),
        "num_blocks": blocks.why,
        "max_model_len": reason(
            config.max_model_len, "the model's limit" if in_full else "what the KV cache holds"
        ),
    }
    return MemoryDecision(
        weight_bytes=budget.weights,
        num_blocks=blocks.count,
        kv_cache_bytes=blocks.count * served.block_bytes,
        max_model_len=min(served.max_len, blocks.tokens),
        reasons=reasons,
    )


def _blocks(inputs: Inputs, plans: PlanDecision, kv_bytes: int) -> _Blocks:
    """Return the blocks in ``kv_bytes``; raise ConfigError if one request may need more."""
    served, asked = plans.target, inputs.config.max_model_len
    size, max_len, windows = served.block_bytes, served.max_len, served.plan.kv_groups.windows
    shared = (
        "" if inputs.draft is None or not inputs.draft.layers else ", the draft's part included"
    )
    if size:
        count = kv_bytes // size
        why = f"{size:,} bytes per block of {BLOCK_SIZE} tokens{shared}"
        if len(windows) > 1:
            why += f", of one of {len(windows)} groups of layers"
        held = tokens_in(windows, count, max_len)
    else:  # a head without attention
        count = served.max_sequences * -(-max_len // BLOCK_SIZE)
        why = "the model keeps no keys and values"
        held = count * BLOCK_SIZE
    if held < (min(max_len, BLOCK_SIZE) if asked is None else max_len):
        needed = sequence_blocks(windows, max_len) * size
        among = f", which {len(windows)} groups of layers share" if len(windows) > 1 else ""
        raise ConfigError(
            f"a KV cache of {kv_bytes:,} bytes holds {count} blocks of {BLOCK_SIZE} tokens "
            f"({size:,} bytes each{shared}){among}, {held} tokens, but one request may "
            f"need {max_len}; set kv_cache_bytes to at least {needed:,} or lower max_model_len"
        )
    return _Blocks(count, held, why)
