"""Shares of what the device can do, from times, bytes and operations."""

from __future__ import annotations

from collections.abc import Sequence

from gpu.results import Decode, Host, Place, Prefill
from penstock.cache.geometry import BLOCK_SIZE, KvDType, window_size
from penstock.models.spec import ModelSpec
from penstock.plan.kv_groups import kv_layers


def of_bandwidth(run: Decode, read_bytes_per_s: float) -> float:
    """Weights, keys and values of a step, over what could have been read in its time."""
    return run.bytes / run.step_s / read_bytes_per_s


def of_matrix_rate(run: Prefill, matrix_flops: float) -> float:
    """Products and attention of a prompt, over what could have been computed in its time."""
    return (run.linear_flops + run.attention_flops) / run.seconds / matrix_flops


def of_host(run: Host) -> float:
    """The part of a step in which the device does not run the plan."""
    return max(0.0, 1 - run.device_s / run.step_s)


def attention_flops(spec: ModelSpec, tokens: int) -> int:
    """Return the attention FLOPs of a prompt of ``tokens`` read from its beginning: scores and
    sums, of visible pairs only.

    A multiplication and an addition for each pair, head and column of keys, and of values.
    """
    total = 0
    for layer in spec.layers:
        a = layer.attention
        window = tokens if a.window is None else min(window_size(a.window), tokens)
        # The first `window` tokens see themselves and all before; later ones see `window`.
        pairs = window * (window + 1) // 2 + (tokens - window) * window
        value_dim = a.head_dim if a.latent is None else a.latent.kv_rank
        total += 2 * a.num_heads * (a.head_dim + value_dim) * pairs
    return total


def kv_bytes(spec: ModelSpec, dtype: KvDType, contexts: Sequence[int]) -> int:
    """Return the KV bytes of a decode step after which sequences have these ``contexts``: read, and
    the one written."""
    total = 0
    for layer in kv_layers(spec.layers):
        window = None if layer.window is None else window_size(layer.window)
        tokens = sum(min(context, window or context) + 1 for context in contexts)
        total += layer.block_bytes(dtype) * tokens // BLOCK_SIZE
    return total


def growth(places: Sequence[Place], read_bytes_per_s: float) -> float:
    """The largest change of a step from the first place on, signed, as a share of the first step.

    Keys and values are given the time that their bytes take at the measured bandwidth; the rest
    is compared. Raises ValueError for fewer than two places.
    """
    if len(places) < 2:
        raise ValueError("growth is seen between two places at least")
    rest = [place.itl_s - place.kv_bytes / read_bytes_per_s for place in places]
    return max((value - rest[0] for value in rest[1:]), key=abs) / rest[0]


def cost(with_it: float, without: float) -> float:
    """How much longer something takes with an option than without, as a share."""
    return with_it / without - 1
