"""Activations of gates, as the native executor names them."""

from __future__ import annotations

from penstock.models.spec import ClampedSwiglu, Gating


def gating(kind: Gating | None) -> tuple[str, tuple[float, float] | None]:
    """An activation by name, and limit and alpha of a clamped one."""
    if isinstance(kind, ClampedSwiglu):
        return "silu", (kind.limit, kind.alpha)
    return kind or "none", None
