"""The figures of a run, each beside its goal."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

import msgspec

Relation = Literal[">=", "<=", "<"]
Unit = Literal["share", "times", "count", "s"]
_HOLDS: dict[Relation, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
}


class Goal(msgspec.Struct, frozen=True):
    """What a figure should be."""

    relation: Relation
    value: float


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure; ``value`` None: not measured, and ``note`` says why."""

    name: str
    unit: Unit
    value: float | None
    goal: Goal | None = None
    note: str = ""

    @property
    def verdict(self) -> Literal["met", "missed", "not measured", "no goal"]:
        if self.value is None:
            return "not measured"
        if self.goal is None:
            return "no goal"
        return "met" if _HOLDS[self.goal.relation](self.value, self.goal.value) else "missed"


def shown(value: float | None, unit: Unit) -> str:
    """``value`` as a reader wants it: 0.8123 as 81.2 %, nothing as a dash."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "times":
        return f"{value:.2f} x"
    return f"{value:.1f} s" if unit == "s" else f"{value:g}"


def shown_goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{figure.goal.relation} {shown(figure.goal.value, figure.unit)}"
