"""What a calibration is of, and how far it was measured."""

from __future__ import annotations

import msgspec

from penstock.plan.costs import PlanCosts
from penstock.plan.plan import Plan


class ModelKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration is of: steps of another model, in other types or on other threads, take
    other times."""

    architecture: str
    parameters: int
    weights: tuple[str, ...]
    """The forms of its products' weights."""
    kv_cache_dtype: str
    backend: str
    threads: int
    ranks: int = 1
    """Processes that share each layer, and these threads."""

    @classmethod
    def of(
        cls, plan: Plan, architecture: str, backend: str, threads: int, ranks: int = 1
    ) -> ModelKey:
        costs = PlanCosts.of(plan)
        return cls(
            architecture=architecture,
            parameters=plan.num_parameters,
            weights=tuple(sorted({e.form for e, _ in costs.counts if e.work == "product"})),
            kv_cache_dtype=plan.kv_dtype,
            backend=backend,
            threads=threads,
            ranks=ranks,
        )

    def differences(self, other: ModelKey) -> list[str]:
        """What is not the same, in words."""
        mine, theirs = msgspec.to_builtins(self), msgspec.to_builtins(other)
        return [
            f"{name} {_shown(theirs[name])} instead of {_shown(value)}"
            for name, value in mine.items()
            if value != theirs[name]
        ]


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """How far steps were measured; beyond it, a clock guesses."""

    rows: int
    """Tokens of a step."""
    sequences: int
    context: int
    """Tokens of a sequence."""


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
