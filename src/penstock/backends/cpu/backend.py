"""The cpu backend: the native runtime."""

from __future__ import annotations

from penstock.backends.backend import Backend, BackendChoice, Defaults, Obstacle
from penstock.backends.cpu.block_layouts import BLOCK_LAYOUTS
from penstock.backends.cpu.kv_pages import KvPages
from penstock.backends.cpu.state_slots import StateSlots
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.interface.budget import Budget
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import PackedWeights, Packing, WeightSource
from penstock.memory_budget import Demand, host_budget
from penstock.plan.plan import Plan
from penstock.quant.scheme import READ_WHOLE, SPARSE, SparseFormat

BATCHED_TOKENS = 512
"""Most tokens of a step. A 1B model computes this many on two cores in about a second: with more,
those who wait for their next token would notice."""


class CpuBackend(Backend):
    name = "cpu"
    defaults = Defaults(64, BATCHED_TOKENS, True, "products of integers are exact")
    keeps_weights = True
    runs_any_order = True
    block_formats = frozenset(BLOCK_LAYOUTS) | READ_WHOLE
    runs_experts = True
    runs_share_scales = True
    runs_clamped_gates = True
    runs_states = True
    runs_ranks = True
    runs_stages = True
    centers_keys = True
    runs_adapters = True

    def asked(self, hardware: Hardware) -> BackendChoice:
        return BackendChoice(self, "as asked")

    def offered(self, hardware: Hardware) -> BackendChoice:
        return BackendChoice(self, "the native backend")

    def obstacle(self, plan: Plan, trees: bool = False) -> Obstacle | None:
        if trees and not KvPages.of(plan).movable:
            return Obstacle(
                f"the cpu backend cannot verify draft trees with {plan.spec.architecture}, whose "
                f"KV cache has {_kinds(plan)}: it moves no slots there",
                "choose a speculative method that drafts chains (ngram, draft, self, or eagle "
                "with width=1), or the slow NumPy backend with --backend reference",
            )
        found = super().obstacle(plan, trees)
        if found is not None:
            return found
        from penstock.backends.cpu.bind import refusal

        problem = refusal(plan)
        if problem is None:
            return None
        return Obstacle(
            f"the cpu backend cannot run {plan.spec.architecture}: {problem}",
            "choose the slow NumPy backend with --backend reference",
        )

    def budget(self, demand: Demand, choice: BackendChoice, hardware: Hardware) -> Budget:
        from penstock.backends.cpu.weight_bytes import weight_bytes

        return host_budget(demand, hardware.memory_available, weight_bytes)

    def sparse_formats(self) -> frozenset[SparseFormat]:
        from penstock.backends.cpu import native

        try:
            return frozenset({SPARSE}) if native.load().sparse_panels else frozenset()
        except ConfigError:  # binding will say so; a plan can be shown without
            return frozenset()

    def state_bytes(self, plan: Plan, log: int) -> int:
        return StateSlots.of(plan.state_layers, plan.state_dtype, log).slot_bytes

    def notes(self) -> tuple[str, ...]:
        from penstock.backends.cpu import native

        try:
            note = native.note()
        except ConfigError:  # binding will say so; a plan can be shown without
            return ()
        return () if note is None else (note,)

    def kernels(self) -> str:
        from penstock.backends.cpu import native

        kib = native.load().second_level_cache() >> 10
        return f"{native.chosen()}, for cores with {kib:,} KiB of L2 each"

    def packing(self) -> Packing:
        from penstock.backends.cpu.native import load

        module = load()
        return Packing(module.isa, module.packed_layout)

    def bind(
        self,
        plan: Plan,
        weights: WeightSource | PackedWeights,
        limits: Limits,
        seat: RankSeat | None = None,
    ) -> Executor:
        from penstock.backends.cpu.bind import bind

        return bind(plan, weights, limits, seat=seat)


def _kinds(plan: Plan) -> str:
    """What a cache has whose slots cannot be moved."""
    if any(layer.rows is not None for layer in plan.kv_layers):
        return "the inputs of convolutions"
    return "heads of several sizes"
