"""The tables of a step's groups of layers, among its other arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.interface.step import KvTables, StepInput

TABLES = KvTables._fields


def arrays_of(step: StepInput) -> dict[str, Any]:
    """Every array of a step by name; those of groups behind the first have its number."""
    arrays = {name: getattr(step, name) for name in step.__dataclass_fields__}
    del arrays["groups"]
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
