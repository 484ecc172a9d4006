"""Layers that keep a state of a sequence in place of its keys and values, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import ModelError


@dataclass(frozen=True)
class GatedDeltaSpec:
    """A gated delta net (arXiv 2412.06464): a matrix of each value head that tokens correct.

    Queries, keys and values are projected, go through a causal convolution of ``kernel`` taps a
    channel, without a bias, and SiLU. Each of ``value_heads`` heads has a state
    ``[key_dim, value_dim]``, which a token lets fade and corrects
    (:class:`penstock.plan.ops.GatedDelta`). What is read of it is normed head by head with ``eps``,
    gated by SiLU of a projection, and projected.

    Raises ModelError where value heads cannot share the key heads, or the kernel has one tap.
    """

    key_heads: int
    value_heads: int
    """A multiple of ``key_heads``: head h uses key head ``h // (value_heads / key_heads)``, or
    ``h % key_heads`` where they are ``tiled``."""
    key_dim: int
    """Components of a query, or key, of one key head."""
    value_dim: int
    """Components of a value of one value head."""
    kernel: int
    eps: float
    tiled: bool = False
    """Whether value heads that follow each other use key heads that do, over and over."""

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ModelError(
                f"{self.value_heads} value heads cannot share {self.key_heads} key heads"
            )
        _check_kernel(self.kernel)

    @property
    def key_size(self) -> int:
        """Components of a token's keys of all heads together; of its queries as many."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Components of a token's values of all heads together."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class SelectiveSpec:
    """A selective state space layer (Mamba 2, arXiv 2405.21060).

    Of a token ``x`` (``heads * head_dim``), ``B`` and ``C`` (``groups * state`` each) are projected
    and go through a causal convolution of ``kernel`` taps a channel and SiLU; a step ``dt`` for
    each head is projected, too. Each head has a state ``[head_dim, state]``
    (:class:`penstock.plan.ops.SelectiveScan`). What is read of it is gated by SiLU of a projection
    ``z``, normed in ``groups`` equal parts with ``eps``, and projected.

    Raises ModelError where heads cannot share the groups, or the kernel has one tap.
    """

    heads: int
    head_dim: int
    groups: int
    """Head h uses ``B`` and ``C`` of group ``h // (heads / groups)``."""
    state: int
    """Numbers that are kept for each component of a head."""
    kernel: int
    eps: float | None
    """None: nothing is normed."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the projections into the layer have biases."""
    output_bias: bool = False
    """Whether the projection out of the layer has one."""
    gate_first: bool = True
    """Whether what is read is gated before its norm, or behind it."""
    z_factor: float = 1.0
    """What ``z`` is multiplied by."""
    dt_factor: float = 1.0
    """What ``dt`` is multiplied by, before its bias (``dt_bias``) is added."""
    dt_limits: tuple[float, float] = (0.0, math.inf)
    """The steps ``dt``, behind softplus, are clamped to these."""

    def __post_init__(self) -> None:
        if self.heads % self.groups:
            raise ModelError(f"{self.heads} heads cannot share {self.groups} groups of B and C")
        if not 0 <= self.dt_limits[0] <= self.dt_limits[1]:
            raise ModelError(f"steps of time are clamped to {self.dt_limits}, which is no range")
        _check_kernel(self.kernel)

    @property
    def inner_size(self) -> int:
        """Components of ``x`` of all heads together."""
        return self.heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: those of ``x``, ``B`` and ``C``."""
        return self.inner_size + 2 * self.groups * self.state


StateSpec = GatedDeltaSpec | SelectiveSpec
"""What a layer has that keeps a state slot of each sequence (``StepInput.states``)."""


def _check_kernel(kernel: int) -> None:
    if kernel < 2:
        raise ModelError(f"a convolution over tokens has at least 2 taps, not {kernel}")
