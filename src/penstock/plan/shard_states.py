"""What a rank has of layers that keep a state."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConfigError
from penstock.models.spec import GatedDeltaSpec, SelectiveSpec, StateSpec

Runs = tuple[tuple[int, int], ...]
"""Runs of columns or rows (first, end), one after another."""


@dataclass(frozen=True)
class OwnState:
    """Some heads of a layer, whose states a rank keeps, and what they read."""

    spec: StateSpec
    """The layer as it is with these heads alone."""
    heads: tuple[int, int]
    channels: Runs
    """Those of the layer's convolution that the heads read. Heads of several ranks may share keys,
    or B and C, which all of these ranks compute then."""


def own_state(spec: StateSpec, rank: int, world: int) -> OwnState:
    """What ``rank`` of ``world`` ranks has. Raises ConfigError where they cannot share the heads
    evenly, or what these share."""
    delta = isinstance(spec, GatedDeltaSpec)
    heads = spec.value_heads if isinstance(spec, GatedDeltaSpec) else spec.heads
    groups = spec.key_heads if isinstance(spec, GatedDeltaSpec) else spec.groups
    tiled = isinstance(spec, GatedDeltaSpec) and spec.tiled
    count = heads // world
    if tiled:  # a rank has heads of all key heads, or each of another
        shared = count > 0 and (count % groups == 0 or groups % count == 0)
    else:
        shared = groups % world == 0 or world % groups == 0
    if heads % world or not shared:
        what = "value heads and {} key heads" if delta else "heads and {} groups of B and C"
        raise ConfigError(
            f"{world} ranks cannot share {heads} {what.format(groups)} evenly, of layers that keep "
            "a state"
        )
    first = rank * count
    group, some = rank * groups // world, max(groups // world, 1)
    if tiled:
        group, some = first % groups, min(count, groups)

    def run(offset: int, first: int, count: int, size: int) -> tuple[int, int]:
        return offset + first * size, offset + (first + count) * size

    own: StateSpec
    if isinstance(spec, SelectiveSpec):
        columns, inner = spec.groups * spec.state, spec.inner_size
        channels = (
            run(0, first, count, spec.head_dim),
            run(inner, group, some, spec.state),
            run(inner + columns, group, some, spec.state),
        )
        own = replace(spec, heads=count, groups=some)
    else:
        channels = (
            run(0, group, some, spec.key_dim),
            run(spec.key_size, group, some, spec.key_dim),
            run(2 * spec.key_size, first, count, spec.value_dim),
        )
        own = replace(spec, key_heads=some, value_heads=count)
    return OwnState(own, (first, first + count), channels)


def within(runs: Runs, first: int, end: int) -> Runs:
    """The parts of runs from ``first`` to ``end``, counted from ``first``."""
    cut = ((max(a, first) - first, min(b, end) - first) for a, b in runs)
    return tuple((a, b) for a, b in cut if a < b)
