"""Turns the reasoning fields of requests into chat template variables that control reasoning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from penstock.server.fields.check import Advice
from penstock.server.fields.rules import Rule

EFFORT = "reasoning_effort"
"""Variable for a level of effort, as in the templates of gpt-oss."""
SWITCHES = ("enable_thinking", "thinking")
"""Boolean variables, as in the templates of Qwen3 and DeepSeek V3.1."""

_ON = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}

_LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Degrees of effort, from the least to the most."""


def heed(
    wishes: Iterable[Advice],
    reads: frozenset[str],
    options: dict[str, Any],
    efforts: Sequence[str] = (),
) -> list[Rule]:
    """Add to a template's ``options`` what ``wishes`` mean to one that ``reads`` these variables.

    Returns the rules of wishes that were not followed, or not in full: a switch knows no degrees
    of effort, and a model may know no more than the degrees ``efforts``, of which it gets the
    nearest. What ``options`` hold already stays: the client has said it in the template's words.
    """
    left = []
    for wish in wishes:
        value = wish.value
        effort = value if isinstance(value, str) and value not in _ON else None
        on = _ON.get(str(value), value not in (False, "none"))
        meant: dict[str, Any] = {name: on for name in SWITCHES if name in reads}
        whole = bool(meant) and effort in (None, "none")
        if effort is not None and EFFORT in reads:
            meant[EFFORT] = _nearest(effort, efforts)
            whole = meant[EFFORT] == effort
        for name, wanted in meant.items():
            whole &= options.setdefault(name, wanted) == wanted
        if not whole:
            left.append(wish.rule)
    return left


def _nearest(effort: str, efforts: Sequence[str]) -> str:
    if not efforts or effort not in _LEVELS:
        return effort
    return min(efforts, key=lambda known: abs(_LEVELS.index(known) - _LEVELS.index(effort)))
