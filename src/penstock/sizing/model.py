"""A model as it is sized: its plans with weights and caches of several types."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.cache.geometry import KvDType
from penstock.dtypes import QuantizationName
from penstock.models.spec import ModelSpec
from penstock.plan.costs import PlanCosts
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.sizing.accelerator import DeviceKind
from penstock.sizing.footprint import Footprint


@dataclass(frozen=True)
class Precision:
    """The types of weights and of keys and values. Weights that are not rounded (``none``) are as
    the checkpoint has them."""

    weights: QuantizationName
    kv: KvDType

    def __str__(self) -> str:
        return f"{'as they are' if self.weights == 'none' else self.weights} / {self.kv}"


@dataclass(frozen=True)
class SizedPlan:
    """A plan, what its ops cost and what it takes."""

    plan: Plan
    costs: PlanCosts
    footprint: Footprint


@dataclass(frozen=True)
class SizedModel:
    """A model, and the plans that were made of it; each is made once."""

    spec: ModelSpec
    _made: dict[tuple[DeviceKind, Precision, int], SizedPlan] = field(default_factory=dict)

    def plan(self, kind: DeviceKind, precision: Precision, step_tokens: int) -> SizedPlan:
        """The plan as a backend for such devices would have it: CPUs round what is multiplied,
        too, GPUs the weights alone.

        ``step_tokens``: how many tokens a step has at most.
        """
        key = kind, precision, step_tokens
        if key not in self._made:
            plan = self._plan(kind, precision)
            self._made[key] = SizedPlan(
                plan, PlanCosts.of(plan), Footprint.of(self.spec, plan, step_tokens)
            )
        return self._made[key]

    def _plan(self, kind: DeviceKind, precision: Precision) -> Plan:
        for (other, its, _), made in self._made.items():
            if other == kind and its.weights == precision.weights:
                return replace(made.plan, kv_dtype=precision.kv)
        quantization = choose(
            precision.weights,
            None,
            True,
            activations=kind == "cpu",
            window_columns=16 if kind == "cpu" else 32,
        )
        spec = self.spec
        primitive = lower(spec, spec.dtype, None, quantization, precision.kv, half=kind == "gpu")
        return fuse(primitive)
