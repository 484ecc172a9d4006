"""Reads the rotary embedding out of a configuration, in transformers' v4 and v5 styles."""

from __future__ import annotations

import math
from typing import cast, get_args

from penstock.models.limits import MAX_FACTOR, MAX_POSITIONS, MAX_THETA, MIN_FACTOR
from penstock.models.reader import ConfigReader
from penstock.models.rope import is_computable
from penstock.models.spec import RopeKind, RopeSpec

DEFAULT_THETA = 10_000.0
"""What every transformers version assumes where the configuration names none."""


def read_rope(config: ConfigReader, head_dim: int, max_positions: int) -> RopeSpec:
    """The rotary embedding of a model whose whole head rotates.

    v5 writes one object, ``rope_parameters``; v4 wrote ``rope_theta`` and, with scaling,
    ``rope_scaling``. Raises :class:`~penstock.errors.ModelError` for kinds that Penstock does not
    compute, for contradictions between the styles, and for keys that the kind does not have.
    """
    whole = "must be 1: heads that rotate only in part are not supported for this architecture"
    config.only("partial_rotary_factor", 1, whole)
    theta = _theta(config)
    new, old = config.section("rope_parameters"), config.section("rope_scaling")
    if new is not None and old is not None:
        raise config.error("rope_scaling", "stands beside rope_parameters; keep only one of them")
    rope = new or old
    if rope is None:
        return RopeSpec(theta=theta or DEFAULT_THETA, dim=head_dim)
    rope.only("partial_rotary_factor", 1, whole)
    inner = _theta(rope)
    if theta is not None and inner is not None and theta != inner:
        raise config.error("rope_theta", f"contradicts the nested rope_theta {inner:g}")
    theta = theta or inner
    spec = _read_kind(rope, _kind(rope), theta or DEFAULT_THETA, head_dim, max_positions)
    rope.finish()
    positions = extended_positions(spec, max_positions)
    if positions > MAX_POSITIONS:
        raise rope.error(
            "factor",
            f"makes {positions} positions of {spec.original_max_positions}, and a model may have "
            f"{MAX_POSITIONS}",
        )
    if not is_computable(spec, positions):
        raise rope.error("factor", f"and theta {spec.theta:g} give rotations that are no numbers")
    return spec


def _theta(config: ConfigReader) -> float | None:
    config.raw("rope_theta")
    if not config.has("rope_theta"):
        return None
    return config.number("rope_theta", above=1.0, high=MAX_THETA)


def _scale(rope: ConfigReader, name: str, default: float | None = None) -> float:
    return rope.number(name, default, low=MIN_FACTOR, high=MAX_FACTOR)


def extended_positions(rope: RopeSpec, max_positions: int) -> int:
    """Positions the model can serve: ``max_position_embeddings`` or what scaling makes of it.

    YaRN configurations leave ``max_position_embeddings`` at either length; dynamic NTK always at
    the original one. Linear scaling does not say which it is, and is taken at its word.
    """
    if rope.kind in ("yarn", "dynamic"):
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    return max_positions


def _kind(rope: ConfigReader) -> RopeKind:
    name = rope.text("rope_type", rope.text("type", "default"))
    if rope.has("type") and rope.text("type") != name:
        raise rope.error("type", f"contradicts rope_type {name!r}")
    kinds = get_args(RopeKind)
    if name not in kinds:
        key = "rope_type" if rope.has("rope_type") else "type"
        raise rope.error(key, f"is not supported; supported are {', '.join(kinds)}")
    return cast(RopeKind, name)


def _read_kind(
    rope: ConfigReader, kind: RopeKind, theta: float, dim: int, max_positions: int
) -> RopeSpec:
    if kind == "default":
        return RopeSpec(theta=theta, dim=dim)
    if kind == "linear":
        return RopeSpec(theta=theta, dim=dim, kind=kind, factor=_scale(rope, "factor"))
    if kind == "dynamic":
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
            kind=kind,
            factor=rope.number("factor", low=1.0, high=MAX_FACTOR),
            original_max_positions=max_positions,
        )
    original = rope.integer("original_max_position_embeddings", max_positions, high=MAX_POSITIONS)
    if kind == "llama3":
        low, high = _scale(rope, "low_freq_factor"), _scale(rope, "high_freq_factor")
        if high <= low:
            raise rope.error("high_freq_factor", f"must exceed low_freq_factor ({low:g})")
        return RopeSpec(
            theta=theta,
            dim=dim,
            kind=kind,
            factor=_scale(rope, "factor"),
            original_max_positions=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = _scale(rope, "factor", max_positions / original)
    fast, slow = _scale(rope, "beta_fast", 32.0), _scale(rope, "beta_slow", 1.0)
    if fast < slow:
        raise rope.error("beta_fast", f"must be at least beta_slow ({slow:g})")
    return RopeSpec(
        theta=theta,
        dim=dim,
        kind=kind,
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
    mscale = rope.number("mscale", 0.0, low=0.0, high=MAX_FACTOR)
    mscale_all = rope.number("mscale_all_dim", 0.0, low=0.0, high=MAX_FACTOR)
    if rope.has("attention_factor"):
        return _scale(rope, "attention_factor")
    rope.raw("attention_factor")
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)
