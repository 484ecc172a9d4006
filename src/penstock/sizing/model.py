"""A model as it is sized: its plans with weights and caches of several types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from penstock.cache.geometry import KvDType
from penstock.dtypes import QuantizationName
from penstock.models.spec import ModelSpec
from penstock.plan.costs import PlanCosts
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.quant.scheme import READ_WHOLE
from penstock.sizing.accelerator import DeviceKind
from penstock.sizing.footprint import Footprint
from penstock.sizing.parallel import Parallelism, divided, without_exchanges
from penstock.sizing.roofline import CostTable


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
    """A plan, what its ops cost and what it takes: of a model, or of the rank with most to do of
    one of its stages."""

    plan: Plan
    costs: PlanCosts
    """What the ops take that compute: exchanges with other ranks are none of them."""
    footprint: Footprint

    @cached_property
    def table(self) -> CostTable:
        """Its costs in steps that were asked for before."""
        return CostTable(self.costs)

    @classmethod
    def of(cls, plan: Plan, step_tokens: int) -> SizedPlan:
        computed = PlanCosts.of(replace(plan, ops=tuple(without_exchanges(plan))))
        return cls(plan, computed, Footprint.of(plan, step_tokens))


@dataclass(frozen=True)
class SizedModel:
    """A model, and the plans that were made of it; each is made once."""

    spec: ModelSpec
    formats: Mapping[DeviceKind, frozenset[str]] = field(default_factory=dict)
    """The formats in which backends for such devices multiply by matrices as a checkpoint has them
    (``Backend.block_formats``); those in others are floats."""
    _primitive: dict[tuple[DeviceKind, QuantizationName, bool], Plan] = field(default_factory=dict)
    _made: dict[tuple[DeviceKind, Precision, int, int, int], tuple[SizedPlan, ...]] = field(
        default_factory=dict
    )

    def plan(self, kind: DeviceKind, precision: Precision, step_tokens: int) -> SizedPlan:
        """The plan as a backend for such devices would have it: CPUs round what is multiplied,
        too, GPUs the weights alone.

        ``step_tokens``: how many tokens a step has at most.
        """
        (whole,) = self.parts(kind, precision, step_tokens, Parallelism())
        return whole

    def parts(
        self, kind: DeviceKind, precision: Precision, step_tokens: int, parallel: Parallelism
    ) -> tuple[SizedPlan, ...]:
        """The plans of the stages of ``parallel``, each of the rank with most to do. Raises
        ConfigError, which says what would fit, where the model cannot be cut so."""
        key = kind, precision, step_tokens, parallel.tensor, parallel.pipeline
        found = self._made.get(key)
        if found is None:
            plan = self._lowered(kind, precision, by_rows=parallel.tensor > 1)
            plans = divided(plan, parallel)
            found = tuple(SizedPlan.of(plan, step_tokens) for plan in plans)
            self._made[key] = found
        return found

    def _lowered(self, kind: DeviceKind, precision: Precision, by_rows: bool) -> Plan:
        """The plan; ``by_rows``: of ranks that have some rows of each matrix."""
        key = kind, precision.weights, by_rows
        if key not in self._primitive:
            quantization = choose(
                precision.weights,
                None,
                True,
                activations=kind == "cpu",
                window_columns=16 if kind == "cpu" else 32,
            )
            spec, half = self._read(kind, precision, by_rows), kind == "gpu"
            self._primitive[key] = lower(
                spec, spec.dtype, None, quantization, precision.kv, half=half
            )
        return replace(self._primitive[key], kv_dtype=precision.kv)

    def _read(self, kind: DeviceKind, precision: Precision, by_rows: bool) -> ModelSpec:
        """The model as a backend for such devices reads it."""
        own = self.spec.quantized
        if own is None or kind not in self.formats:
            return self.spec
        formats = self.formats[kind]
        if by_rows:
            formats -= READ_WHOLE
        limited = own.limited(formats, rounded=precision.weights != "none")
        return replace(self.spec, quantized=limited)
