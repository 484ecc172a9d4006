"""Reads the parameters of each kind of rotary embedding."""

from __future__ import annotations

import math

from penstock.models.limits import MAX_FACTOR, MAX_POSITIONS, MIN_FACTOR
from penstock.models.reader import ConfigReader
from penstock.models.rope_spec import RopeKind, RopeSpec


def read_kind(
    rope: ConfigReader,
    kind: RopeKind,
    theta: float,
    dim: int,
    max_positions: int,
    original: int | None = None,
) -> RopeSpec:
    """The rotary embedding of this kind, over ``dim`` components of a head.

    ``max_positions`` is the configuration's ``max_position_embeddings``, ``original`` the number
    of positions before scaling where the configuration names it outside. Raises ModelError.
    """
    if kind == "default":
        return RopeSpec(theta=theta, dim=dim)
    if kind == "linear":
        return RopeSpec(theta=theta, dim=dim, kind=kind, factor=_scale(rope, "factor"))
    if kind == "proportional":
        factor = _scale(rope, "factor", 1.0)
        return RopeSpec(theta=theta, dim=dim, kind=kind, factor=factor, rotating=dim // 2)
    if kind == "dynamic":
        return _dynamic(rope, theta, dim, max_positions)
    name = "original_max_position_embeddings"
    if original is not None:
        rope.only(name, original, f"contradicts the {original} that are named outside")
    original = rope.integer(name, original or max_positions, high=MAX_POSITIONS)
    read = {"llama3": _llama3, "yarn": _yarn, "longrope": _longrope}[kind]
    return read(rope, theta, dim, max_positions, original)


def _scale(rope: ConfigReader, name: str, default: float | None = None) -> float:
    """The number; ``default``, if any, where it is absent or, as transformers reads it, null."""
    if default is None:
        return rope.number(name, low=MIN_FACTOR, high=MAX_FACTOR)
    found = rope.optional_number(name, low=MIN_FACTOR, high=MAX_FACTOR)
    return default if found is None else found


def _dynamic(rope: ConfigReader, theta: float, dim: int, max_positions: int) -> RopeSpec:
    if dim < 4:
        raise rope.error("rope_type", "needs heads of at least 4 components")
    rope.only(
        "original_max_position_embeddings",
        max_positions,
        f"must equal max_position_embeddings ({max_positions}), which dynamic scaling uses",
    )
    return RopeSpec(
        theta=theta,
        dim=dim,
        kind="dynamic",
        factor=rope.number("factor", low=1.0, high=MAX_FACTOR),
        original_max_positions=max_positions,
    )


def _llama3(
    rope: ConfigReader, theta: float, dim: int, max_positions: int, original: int
) -> RopeSpec:
    low, high = _scale(rope, "low_freq_factor"), _scale(rope, "high_freq_factor")
    if high < low:
        raise rope.error("high_freq_factor", f"must be at least low_freq_factor ({low:g})")
    return RopeSpec(
        theta=theta,
        dim=dim,
        kind="llama3",
        factor=_scale(rope, "factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(
    rope: ConfigReader, theta: float, dim: int, max_positions: int, original: int
) -> RopeSpec:
    factor = _scale(rope, "factor", max_positions / original)
    fast, slow = _scale(rope, "beta_fast", 32.0), _scale(rope, "beta_slow", 1.0)
    if fast < slow:
        raise rope.error("beta_fast", f"must be at least beta_slow ({slow:g})")
    return RopeSpec(
        theta=theta,
        dim=dim,
        kind="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_yarn_attention_factor(rope, factor),
        truncate=rope.boolean("truncate", True),
    )


def _yarn_attention_factor(rope: ConfigReader, factor: float) -> float:
    """Explicit, else from both mscales, else ``0.1 ln(factor) + 1`` (arXiv 2309.00071)."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    # Zero counts as unset for both mscales, as transformers reads them.
    mscale = rope.optional_number("mscale", low=0.0, high=MAX_FACTOR)
    mscale_all = rope.optional_number("mscale_all_dim", low=0.0, high=MAX_FACTOR)
    if rope.has("attention_factor"):
        return _scale(rope, "attention_factor")
    rope.raw("attention_factor")
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)


def _longrope(
    rope: ConfigReader, theta: float, dim: int, max_positions: int, original: int
) -> RopeSpec:
    """LongRoPE (arXiv 2402.13753): a divisor for each frequency, one list for short contexts."""
    lists = []
    for name in ("short_factor", "long_factor"):
        factors = rope.numbers(name, low=MIN_FACTOR, high=MAX_FACTOR)
        if len(factors) != dim // 2:
            raise rope.error(name, f"must have a number for each of {dim // 2} frequencies")
        lists.append(factors)
    rope.raw("factor"), rope.raw("attention_factor")
    factor = _scale(rope, "factor", max_positions / original)
    long = _scale(rope, "long_mscale") if rope.has("long_mscale") else None
    if long is not None:  # PhiMoE names the attention factor of each list, and needs both
        rope.only("short_mscale", long, f"must equal long_mscale ({long:g})")
        attention = _scale(rope, "short_mscale")
    elif rope.has("attention_factor"):
        attention = _scale(rope, "attention_factor")
    elif factor <= 1.0:
        attention = 1.0
    elif original == 1:
        raise rope.error("original_max_position_embeddings", "must be at least 2 for longrope")
    else:
        attention = math.sqrt(1.0 + math.log(factor) / math.log(original))
    return RopeSpec(
        theta=theta,
        dim=dim,
        kind="longrope",
        factor=factor,
        original_max_positions=original,
        attention_factor=attention,
        short_factors=lists[0],
        long_factors=lists[1],
    )
