"""The tables of a step's one group of layers, among its other arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.interface.step import KvTables, StepInput

TABLES = KvTables._fields


def arrays_of(step: StepInput) -> dict[str, Any]:
    """Every array of a step of one group, by name."""
    (tables,) = step.groups
    arrays = {name: getattr(step, name) for name in step.__dataclass_fields__}
    del arrays["groups"]
    return arrays | tables._asdict()


def changed(step: StepInput, **changes: Any) -> StepInput:
    """The step with other arrays, of which some may be its one group's."""
    own = {name: changes.pop(name) for name in TABLES if name in changes}
    if own:
        (tables,) = step.groups
        changes["groups"] = (tables._replace(**own),)
    return replace(step, **changes)
