"""Runs of ``penstock.quantize`` that end in the middle."""

from __future__ import annotations

from penstock.backends.registry import backend
from penstock.engine.piece_run import Bind
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import WeightSource
from penstock.plan.plan import Plan


class Interrupted(Exception):
    """The run was to end here."""


def interrupted(after: int) -> Bind:
    """Binds a reference executor so many times, and then no more."""
    count = 0

    def bind(plan: Plan, weights: WeightSource, limits: Limits) -> Executor:
        nonlocal count
        if count == after:
            raise Interrupted
        count += 1
        return backend("reference").bind(plan, weights, limits)

    return bind
