"""Decides the size of the KV cache, and with it how long a sequence may become, and how many state
slots there are beside it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cache.geometry import BLOCK_SIZE, MOST_BLOCKS, sequence_blocks, tokens_in
from penstock.errors import ConfigError
from penstock.memory_budget import Demand, Served
from penstock.quant.scheme import Quantization
from penstock.resolve.backend import BackendDecision
from penstock.resolve.inputs import Inputs, Reasons, reason
from penstock.resolve.lengths import LengthDecision
from penstock.resolve.plans import PlanDecision


@dataclass(frozen=True)
class MemoryDecision:
    """How memory is divided between weights, KV cache and states, and what these can hold."""

    weight_bytes: int
    num_blocks: int
    kv_cache_bytes: int
    """Bytes of these blocks, the draft's part included."""
    max_model_len: int
    max_num_seqs: int
    """As many as the step's limits have, or as there are states for."""
    num_states: int
    reasons: Reasons


@dataclass(frozen=True)
class _Blocks:
    """The blocks of the KV cache."""

    count: int
    tokens: int
    """Length of the longest sequence that all of them can hold."""
    why: str


@dataclass(frozen=True)
class _States:
    """The state slots, one for each sequence that runs, and those for prefixes that are kept; none
    where no layer keeps states."""

    count: int
    sequences: int
    """Number of sequences that may run at once."""
    num_bytes: int
    """Bytes of all slots together."""
    reasons: Reasons


def decide_memory(
    inputs: Inputs,
    backend: BackendDecision,
    schemes: Quantization,
    plans: PlanDecision,
    lengths: LengthDecision,
) -> MemoryDecision:
    """Return the division of the memory that the backend computes in."""
    config, served, weights = inputs.config, plans.target, inputs.types.weights
    tiers = config.kv_disk is not None or config.kv_host_bytes is not None
    demand = Demand(served, config.kv_cache_bytes, plans.draft, plans.plan_with, tiers)
    budget = backend.backend.budget(demand, backend.choice, inputs.hardware)
    states = _states(inputs, served, budget.kv_cache, lengths)
    blocks = _blocks(inputs, plans, budget.kv_cache, states.num_bytes, lengths)
    in_full = blocks.tokens >= served.max_len
    less = f", less {states.num_bytes:,} of states" if states.num_bytes else ""
    quantized = schemes.linear is not None or inputs.spec.quantized is not None
    rounded = f"codes, scales, and the rest in {weights}"
    reasons = {
        "kv_cache_dtype": reason(config.kv_cache_dtype, "the weights' type"),
        "weight_bytes": rounded if quantized else f"all in {weights}",
        "kv_cache_bytes": reason(config.kv_cache_bytes, budget.why) + less,
        "num_blocks": blocks.why + _held(served, blocks, lengths),
        "max_model_len": reason(
            None if lengths.sure else config.max_model_len,
            "max_input_len and max_output_len together"
            if lengths.sure
            else "the model's limit"
            if in_full
            else "what the KV cache holds",
        ),
        **states.reasons,
    }
    return MemoryDecision(
        weight_bytes=budget.weights,
        num_blocks=blocks.count,
        kv_cache_bytes=blocks.count * served.block_bytes,
        max_model_len=min(served.max_len, blocks.tokens),
        max_num_seqs=states.sequences,
        num_states=states.count,
        reasons=reasons,
    )


def _held(served: Served, blocks: _Blocks, lengths: LengthDecision) -> str:
    """What is said of the longest sequences, where these are known."""
    if not lengths.sure or not served.block_bytes:
        return ""
    each = sequence_blocks(served.windows, lengths.longest)
    count = max(1, (blocks.count - served.blocks_behind_windows) // each)
    return f"; they hold {count} sequences of {lengths.longest} tokens to their ends"


def _states(inputs: Inputs, served: Served, cache_bytes: int, lengths: LengthDecision) -> _States:
    """Return the state slots. Those of sequences take at most half of ``cache_bytes``, those for
    prefixes half of the rest, or both what is not needed for keys and values; raise ConfigError if
    more sequences are asked for than that holds."""
    each, sequences = served.state_bytes, served.max_sequences
    if each == 0:
        return _States(0, sequences, 0, {})
    keys_and_values = served.all_sequences_bytes - served.max_states * each
    most = max(cache_bytes // 2, cache_bytes - keys_and_values) // each
    reasons: dict[str, str] = {}
    if sequences > most:
        if most == 0 or inputs.config.max_num_seqs is not None:
            lower = f", or lower max_num_seqs to at most {most}" if most else ""
            max_len = served.max_len
            request = max_len if _is_asked(inputs, lengths) else min(max_len, BLOCK_SIZE)
            blocks = sequence_blocks(served.windows, request) * served.block_bytes
            needed = sequences * each + max(min(sequences * each, keys_and_values), blocks)
            raise ConfigError(
                f"the states of {sequences} sequences take {sequences * each:,} bytes, {each:,} "
                f"each, and may take half of the {cache_bytes:,} bytes for the KV cache and "
                f"states; set kv_cache_bytes to at least {needed:,}{lower}"
            )
        sequences = most
        reasons["max_num_seqs"] = "states of as many take half of the memory for KV cache and them"
    why, count = f"one for each of {sequences} sequences", sequences
    if served.kept_states:
        rest = cache_bytes - sequences * each
        one = sequence_blocks(served.windows, served.max_len) * served.block_bytes
        most = max(min(rest // 2, rest - one), rest - keys_and_values, 0)
        kept = min(served.kept_states * sequences, most // each)
        why, count = f"{why}, and {kept} for prefixes", sequences + kept
    reasons["num_states"] = f"{why}, {each:,} bytes each"
    return _States(count, sequences, count * each, reasons)


def _is_asked(inputs: Inputs, lengths: LengthDecision) -> bool:
    """Whether a sequence of the longest length is asked for, and not the most that fits."""
    return lengths.sure or inputs.config.max_model_len is not None


def _blocks(
    inputs: Inputs,
    plans: PlanDecision,
    cache_bytes: int,
    state_bytes: int,
    lengths: LengthDecision,
) -> _Blocks:
    """Return the blocks in ``cache_bytes`` beside the states, at most :data:`MOST_BLOCKS`; raise
    ConfigError if one request may need more, or if more than these were asked for."""
    kv_bytes = cache_bytes - state_bytes
    served = plans.target
    size, max_len, windows = served.block_bytes, served.max_len, served.windows
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
    if count > MOST_BLOCKS:
        if size and inputs.config.kv_cache_bytes is not None:
            raise ConfigError(
                f"a KV cache of {kv_bytes:,} bytes has {count:,} blocks of {BLOCK_SIZE} tokens "
                f"({size:,} bytes each{shared}), and there can be {MOST_BLOCKS:,}; set "
                f"kv_cache_bytes to at most {MOST_BLOCKS * size + state_bytes:,}"
            )
        count, why = MOST_BLOCKS, "as many as can be numbered"
        held = tokens_in(windows, count, max_len)
    if held < (max_len if _is_asked(inputs, lengths) else min(max_len, BLOCK_SIZE)):
        needed = one = sequence_blocks(windows, max_len) * size
        if inputs.config.max_num_seqs is not None:
            needed += state_bytes
        else:  # with more memory more sequences run, whose states take at most half of it
            needed += min(one, served.max_sequences * served.state_bytes)
        beside = f" (beside {state_bytes:,} of states)" if state_bytes else ""
        among = f", which {len(windows)} groups of layers share" if len(windows) > 1 else ""
        raise ConfigError(
            f"a KV cache of {kv_bytes:,} bytes{beside} holds {count} blocks of {BLOCK_SIZE} tokens "
            f"({size:,} bytes each{shared}){among}, {held} tokens, but one request may "
            f"need {max_len}; set kv_cache_bytes to at least {needed:,} or lower {lengths.fix}"
        )
    return _Blocks(count, held, why)
