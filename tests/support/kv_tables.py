"""The tables of a step's groups of layers, among its other arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import KvTables, StepInput

TABLES = KvTables._fields


def arrays_of(step: StepInput) -> dict[str, Any]:
    """Every array of a step by name but those of states and adapters; those of groups behind the
    first have its number."""
    arrays = {name: getattr(step, name) for name in step.__dataclass_fields__}
    del arrays["groups"], arrays["states"], arrays["adapters"]
    for group, tables in enumerate(step.groups):
        named = tables._asdict().items()
        arrays |= {f"{name}.{group}" if group else name: array for name, array in named}
    return arrays


def changed(step: StepInput, **changes: Any) -> StepInput:
    """The step with other arrays, of which some may be its one group's."""
    own = {name: changes.pop(name) for name in TABLES if name in changes}
    if own:
        (tables,) = step.groups
        changes["groups"] = (tables._replace(**own),)
    return replace(step, **changes)


def in_groups(step: StepInput, groups: int, blocks: int) -> StepInput:
    """A step of one group of layers for a plan of ``groups``: each has the same tables, in blocks
    of its own, ``blocks`` behind those of the group before."""
    (first,) = step.groups
    tables = tuple(
        first._replace(
            slots=first.slots + np.int32(g * blocks * BLOCK_SIZE),
            block_ids=first.block_ids + np.int32(g * blocks),
        )
        for g in range(groups)
    )
    return replace(step, groups=tables)
