"""Backends bind a plan to a device: ``reference`` (NumPy, the oracle) and ``cpu`` (native)."""

from __future__ import annotations

from penstock.backends.base import Executor, Limits, WeightSource
from penstock.errors import ConfigError
from penstock.plan.plan import Plan

__all__ = ["Executor", "Limits", "WeightSource", "bind"]


def bind(plan: Plan, weights: WeightSource, backend: str, limits: Limits) -> Executor:
    """An executor for ``plan`` on the named backend; raises ConfigError if it cannot run here."""
    if backend == "reference":
        from penstock.backends.reference.executor import ReferenceExecutor

        return ReferenceExecutor(plan, weights, limits)
    if backend == "cpu":
        from penstock.backends.cpu.bind import bind as bind_cpu

        return bind_cpu(plan, weights, limits)
    raise ConfigError(f"unknown backend {backend!r}; there are 'cpu' and 'reference'")
