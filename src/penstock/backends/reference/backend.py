"""The reference backend, NumPy: what the others are compared with."""

from __future__ import annotations

from dataclasses import replace

from penstock.backends.backend import Backend, BackendChoice, Defaults
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.interface.budget import Budget
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.memory_budget import Demand, host_budget
from penstock.plan.plan import Plan
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.scheme import READ_WHOLE
from penstock.threads import Threads


class ReferenceBackend(Backend):
    name = "reference"
    runs_experts = True
    runs_share_scales = True
    runs_clamped_gates = True
    runs_any_order = True
    block_formats = frozenset(BLOCK_FORMATS) | READ_WHOLE
    runs_states = True
    runs_ranks = True
    runs_stages = True
    centers_keys = True
    runs_adapters = True
    defaults = Defaults(64, 512, True, "products of integers are exact")

    def asked(self, hardware: Hardware) -> BackendChoice:
        return BackendChoice(self, "as asked")

    def threads(self, asked: int | str | None, hardware: Hardware) -> Threads:
        return replace(super().threads(asked, hardware), notes=())  # it computes on one

    def budget(self, demand: Demand, choice: BackendChoice, hardware: Hardware) -> Budget:
        return host_budget(demand, hardware.memory_available)

    def bind(
        self,
        plan: Plan,
        weights: WeightSource | PackedWeights,
        limits: Limits,
        seat: RankSeat | None = None,
    ) -> Executor:
        from penstock.backends.reference.executor import ReferenceExecutor

        if isinstance(weights, PackedWeights):
            raise ConfigError("the reference backend reads weights from a checkpoint alone")
        return ReferenceExecutor(plan, weights, limits, None if seat is None else seat.collective)
