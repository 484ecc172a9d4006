"""What backends do not run yet, found out of a plan before anything is bound."""

from __future__ import annotations

from typing import Final

from penstock.errors import ConfigError
from penstock.plan import ops
from penstock.plan.plan import Plan

_EXPERTS: Final = (ops.Route, ops.ExpertLinear, ops.CombineExperts)


def check_runnable(plan: Plan, backend: str) -> None:
    """Raise ConfigError, naming what it is, where ``backend`` lacks kernels that ``plan`` needs."""
    if backend != "reference" and any(isinstance(op, _EXPERTS) for op in plan.ops):
        raise ConfigError(
            f"{plan.spec.architecture} has layers that are mixtures of experts, which the "
            f"{backend} backend does not run yet; choose the slow NumPy backend with --backend "
            "reference, or a dense model"
        )
