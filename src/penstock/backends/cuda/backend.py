"""The cuda backend: NVIDIA GPUs, through Triton. Imports torch only to bind and to reckon."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.backends.backend import Backend, BackendChoice, Defaults, Obstacle
from penstock.backends.cuda.block_layouts import BLOCK_LAYOUTS
from penstock.backends.cuda.pages import unreadable
from penstock.errors import ConfigError
from penstock.gpu import GpuSearch, is_interpreted
from penstock.hardware import Hardware
from penstock.interface.blocks import DEVICE_LAYOUT
from penstock.interface.budget import Budget
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import PackedWeights, WeightSource
from penstock.memory_budget import Demand, Served
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant.scheme import READ_WHOLE, SPARSE_OF_FLOATS, BlockScheme, SparseFormat
from penstock.threads import Threads

BATCHED_TOKENS = 2048
"""A GPU computes rows beside each other: with fewer tokens its products wait for weights."""


class CudaBackend(Backend):
    name = "cuda"
    defaults = Defaults(256, BATCHED_TOKENS, False, "reading weights takes the time", 32)
    on_gpu = True
    half_rows = True
    can_be_nondeterministic = True
    runs_experts = True
    runs_ranks = True
    runs_adapters = True
    block_formats = frozenset(BLOCK_LAYOUTS) | READ_WHOLE
    block_layout = DEVICE_LAYOUT

    def kernel_kind(self, deterministic: bool) -> str:
        import torch
        import triton

        from penstock.backends.cuda.capability import capability_of

        on_gpu = not is_interpreted(os.environ)
        major, minor = capability_of(torch.device("cuda", 0) if on_gpu else torch.device("cpu"))
        kind = f"sm_{major}{minor}" if on_gpu else "interpreted"
        products = "" if deterministic else f", products of torch {torch.__version__}"
        return f"{kind}, triton {triton.__version__}{products}"

    def sparse_formats(self) -> frozenset[SparseFormat]:
        return frozenset({SPARSE_OF_FLOATS})

    def asked(self, hardware: Hardware) -> BackendChoice:
        gpu = _search(hardware).require()
        note = f"on {gpu.described}"
        if gpu.interpreted:
            note = "TRITON_INTERPRET is set: GPU kernels are interpreted on the CPU, for tests"
        return BackendChoice(self, "as asked", gpu, (note,))

    def offered(self, hardware: Hardware) -> BackendChoice | None:
        gpu = _search(hardware).gpu
        if gpu is None or gpu.interpreted:
            return None
        note = f"on {gpu.described}; --backend cpu computes on the CPU"
        return BackendChoice(self, "there is a GPU that serves", gpu, (note,))

    def why_not(self, hardware: Hardware) -> tuple[str, ...]:
        problem = _search(hardware).problem
        return () if problem is None else (f"no GPU is used: {problem}",)

    def threads(self, asked: int | str | None, hardware: Hardware) -> Threads:
        if asked is not None:
            raise ConfigError(
                f"threads {asked} has no effect on the cuda backend, which computes on the GPU; "
                "leave it out, or choose --backend cpu"
            )
        return Threads(1, (), "the GPU computes")

    def obstacle(self, plan: Plan, trees: bool = False) -> Obstacle | None:
        reason = unreadable(plan)
        if reason is None and any(map(_rounds_for_blocks, plan.ops)):
            return Obstacle(
                "the cuda backend multiplies matrices in blocks by activations as they are, and "
                "does not round these",
                "leave out --quantize-activations, or choose --backend cpu",
            )
        if reason is None:
            return super().obstacle(plan, trees)
        return Obstacle(
            f"the cuda backend cannot run {plan.spec.architecture}: {reason}",
            "choose --backend cpu, or another model",
        )

    def obstacle_for_ranks(self, world: int, hardware: Hardware, drafts: bool) -> Obstacle | None:
        gpu = _search(hardware).gpu
        if gpu is not None and gpu.count < world:
            there = "1 GPU" if gpu.count == 1 else f"{gpu.count} GPUs"
            return Obstacle(
                f"this machine has {there}, and tensor_parallel {world} needs {world}, one for "
                "each rank",
                "take fewer ranks, see whether CUDA_VISIBLE_DEVICES hides any, or choose --backend "
                "cpu",
            )
        if drafts:
            return Obstacle(
                f"tensor_parallel {world} on GPUs does not go with models or heads that draft yet, "
                "whose memory would be that of one GPU alone",
                "choose --speculative ngram, leave one of both out, or choose --backend cpu",
            )
        return None

    def environment_of_rank(self, rank: int, environment: Mapping[str, str]) -> Mapping[str, str]:
        if is_interpreted(environment):
            return environment
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        own = str(rank) if visible is None else visible.split(",")[rank].strip()
        return {**environment, "CUDA_VISIBLE_DEVICES": own}

    def budget(self, demand: Demand, choice: BackendChoice, hardware: Hardware) -> Budget:
        from penstock.backends.cuda.block_mover import staging_bytes
        from penstock.backends.cuda.memory import divide, needs
        from penstock.backends.cuda.rank_memory import divide_among_ranks

        assert choice.gpu is not None
        served, draft = demand.served, demand.draft
        if len(served.parts) > 1:
            assert draft is None  # which obstacle_for_ranks refuses
            return divide_among_ranks(
                served.parts,
                _limits(served),
                choice.gpu.memory_free,
                demand.kv_cache_bytes,
                served.all_sequences_bytes,
            )
        return divide(
            served.plan,
            demand.plan_with,
            _limits(served),
            choice.gpu.memory_free,
            demand.kv_cache_bytes,
            served.all_sequences_bytes,
            None if draft is None else needs(draft.plan, _limits(draft)),
            staging_bytes(served.plan.kv_groups.page_bytes) if demand.copies_blocks else 0,
        )

    def bind(
        self,
        plan: Plan,
        weights: WeightSource | PackedWeights,
        limits: Limits,
        seat: RankSeat | None = None,
    ) -> Executor:
        from penstock.backends.cuda.bind import bind

        return bind(plan, weights, limits, seat=seat)


def _limits(model: Served) -> Limits:
    return Limits(
        num_blocks=0,
        max_tokens=model.max_tokens,
        max_logit_rows=model.max_logit_rows,
        max_hidden_rows=model.max_tokens,
        max_sequences=model.max_sequences,
        threads=1,
        deterministic=model.deterministic,
    )


def _rounds_for_blocks(op: ops.Op) -> bool:
    match op:
        case ops.Linear() | ops.ExpertLinear():
            return isinstance(op.scheme, BlockScheme) and not op.weight_only
    return False


def _search(hardware: Hardware) -> GpuSearch:
    return hardware.gpu or GpuSearch()
