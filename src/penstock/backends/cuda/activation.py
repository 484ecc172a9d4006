"""Which gatings the kernels compute."""

from __future__ import annotations

from penstock.models.spec import Activation, ClampedSwiglu, Gating


def plain_activation(kind: Gating) -> Activation:
    """``kind`` for kernels that multiply an activation of the gate by the up; ValueError for what
    is computed otherwise."""
    if isinstance(kind, ClampedSwiglu):
        raise ValueError("this backend has no kernel for clamped SwiGLU here")
    return kind
