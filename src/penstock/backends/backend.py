"""The interface of a backend: whether it can run, its defaults, its memory, and how it binds a
plan.

Nothing of a backend is imported before it binds a plan, or is asked for the memory of its kernels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.dtypes import WindowColumns
from penstock.errors import ConfigError
from penstock.gpu import Gpu
from penstock.hardware import Hardware
from penstock.interface.blocks import BLOCK_LAYOUT
from penstock.interface.budget import Budget
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor, Limits
from penstock.interface.weights import PackedWeights, Packing, WeightSource
from penstock.memory_budget import Demand
from penstock.models.spec import ClampedSwiglu
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant.scheme import SparseFormat
from penstock.resolved_config import ChosenBackend
from penstock.threads import Threads, choose_threads


@dataclass(frozen=True)
class Defaults:
    """A backend's values of options that the user leaves open."""

    max_num_seqs: int
    max_num_batched_tokens: int
    quantize_activations: bool
    """Whether activations are quantized along with the weights."""
    quantize_activations_why: str
    window_columns: WindowColumns = 16
    """Columns of a window of 4 bits: what the backend's kernels multiply, no option."""


@dataclass(frozen=True)
class BackendChoice:
    """The backend that the engine uses, and why."""

    backend: Backend
    reason: str
    gpu: Gpu | None = None
    """The GPU that it uses; None for backends that use none."""
    notes: tuple[str, ...] = ()
    """Lines for the user who starts the engine."""


@dataclass(frozen=True)
class Obstacle:
    """What keeps a backend from running a plan."""

    what: str
    """What the plan needs and the backend lacks, with the names of both."""
    fix: str

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}"


class Backend(ABC):
    """A way to compute plans. ``penstock.backends.registry`` lists all of them."""

    name: ClassVar[ChosenBackend]
    defaults: ClassVar[Defaults]
    on_gpu: ClassVar[bool] = False
    """Whether it computes on a GPU and in its memory, fed by threads of the CPU."""
    keeps_weights: ClassVar[bool] = False
    """Whether it packs weights into a form that can be kept on disk (:meth:`packing`)."""
    half_rows: ClassVar[bool] = False
    """Whether its products read activations in float16 where weights are float16."""
    can_be_nondeterministic: ClassVar[bool] = False
    """Whether it has faster kernels whose results may depend on other rows."""

    runs_experts: ClassVar[bool] = False
    """Whether it has kernels for mixtures of experts."""
    runs_share_scales: ClassVar[bool] = False
    """Whether its kernels multiply the shares of experts by numbers of these (``Route``)."""
    runs_clamped_gates: ClassVar[bool] = False
    """Whether it has kernels for a clamped SwiGLU outside of routed experts."""
    runs_any_order: ClassVar[bool] = False
    """Whether it multiplies quantized matrices whose groups are of columns that lie anywhere
    (``GroupTensor.order``)."""

    block_formats: ClassVar[frozenset[str]] = frozenset()
    """Formats of blocks (``quant/formats``) whose matrices it multiplies as they are, experts' too,
    and looks tokens up in; ``LATTICE`` and ``CODEBOOKS`` where it multiplies by matrices of these
    (``LatticeScheme``, ``CodebookScheme``). Those of other formats are read as floats."""

    runs_states: ClassVar[bool] = False
    """Whether it has kernels for layers that keep a state of a sequence (``plan.ops.state``)."""

    runs_ranks: ClassVar[bool] = False
    """Whether it runs the plan of one rank of several (``plan/shard.py``)."""

    runs_stages: ClassVar[bool] = False
    """Whether it runs the plan of one stage of several (``plan/stages.py``)."""

    runs_adapters: ClassVar[bool] = False
    """Whether it adds low-rank adapters to products (``plan/adapt.py``)."""

    centers_keys: ClassVar[bool] = False
    """Whether it caches keys centered and scaled (``Plan.key_columns``)."""

    block_layout: ClassVar[int] = BLOCK_LAYOUT
    """The layout in which its executors give and take blocks of the KV cache."""

    def sparse_formats(self) -> frozenset[SparseFormat]:
        """Where it holds matrices with 2:4 sparsity without their zeros on this machine."""
        return frozenset()

    @abstractmethod
    def asked(self, hardware: Hardware) -> BackendChoice:
        """Return the choice of this backend, which the user named; raises ConfigError if it cannot
        run here.

        ``hardware`` includes the result of looking for what the backend needs, such as a GPU.
        """

    def offered(self, hardware: Hardware) -> BackendChoice | None:
        """Return the choice of this backend where the user named none; None if it cannot run
        here."""
        return None

    def why_not(self, hardware: Hardware) -> tuple[str, ...]:
        """Return lines on why this backend is not used, for a user who named none."""
        return ()

    def threads(self, asked: int | str | None, hardware: Hardware) -> Threads:
        """Return the compute threads; raises ConfigError if they cannot be had."""
        return choose_threads(asked, hardware)

    def check_deterministic(self, deterministic: bool) -> None:
        """Raise ConfigError if the backend is asked not to be deterministic and always is."""
        if not deterministic and not self.can_be_nondeterministic:
            raise ConfigError(
                f"deterministic can be turned off on the cuda backend alone; {self.name} has no "
                "faster way that is not, so leave it on"
            )

    def obstacle_for_ranks(self, world: int, hardware: Hardware, drafts: bool) -> Obstacle | None:
        """Return what keeps ``world`` ranks from computing with the backend on this machine,
        whatever the model; None if nothing does. ``drafts``: whether a model or heads draft."""
        if self.runs_ranks:
            return None
        return Obstacle(
            f"tensor_parallel {world} needs a backend that runs one of several ranks, which the "
            f"{self.name} backend does not do yet",
            "choose --backend cpu, or leave tensor_parallel out",
        )

    def environment_of_rank(self, rank: int, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment of the process of a rank other than the first, of the engine's:
        where there is a device for each rank, it sees its own alone."""
        return environment

    def obstacle(self, plan: Plan, trees: bool = False) -> Obstacle | None:
        """Return what keeps the backend from running ``plan``, fused or not; None if nothing does.

        ``trees``: whether steps may hold draft trees, of which the accepted tokens' keys and values
        are moved in the cache (``StepInput.slot_moves``).
        """
        if not self.runs_experts and any(isinstance(op, ops.Route) for op in plan.ops):
            return Obstacle(
                f"{plan.spec.architecture} has layers that are mixtures of experts, which the "
                f"{self.name} backend does not run yet",
                "choose the slow NumPy backend with --backend reference, or a dense model",
            )
        if not self.runs_share_scales and any(map(_scales_shares, plan.ops)):
            return Obstacle(
                f"{plan.spec.architecture} has numbers that shares of experts are multiplied by, "
                f"which the {self.name} backend does not do yet",
                "choose --backend cpu, or another model",
            )
        if not self.runs_states and plan.state_layers:
            return Obstacle(
                f"{plan.spec.architecture} has layers that keep a state of a sequence in place of "
                f"its keys and values, which the {self.name} backend does not run yet",
                "choose the slow NumPy backend with --backend reference, or another model",
            )
        if not self.runs_clamped_gates and any(map(_gates_clamped, plan.ops)):
            return Obstacle(
                f"{plan.spec.architecture} has MLPs with a clamped SwiGLU besides its experts, "
                f"which the {self.name} backend does not run yet",
                "choose the slow NumPy backend with --backend reference, or another model",
            )
        return None

    def check_runnable(self, plan: Plan, trees: bool = False) -> None:
        """Raise ConfigError, with the fix, where there is an :meth:`obstacle`."""
        obstacle = self.obstacle(plan, trees)
        if obstacle is not None:
            raise ConfigError(str(obstacle))

    @abstractmethod
    def budget(self, demand: Demand, choice: BackendChoice, hardware: Hardware) -> Budget:
        """Divide the memory in which it computes between weights and KV cache.

        Raises ConfigError, which says what would fit, if the model does not.
        """

    def state_bytes(self, plan: Plan, log: int) -> int:
        """Return the bytes that the backend allocates for each state slot, of which ``log`` tokens
        may be taken back; 0 where no layer of ``plan`` keeps a state."""
        return plan.state_bytes(log)

    def notes(self) -> tuple[str, ...]:
        """Return lines on this machine's kernels for the user who starts the engine."""
        return ()

    def kernels(self) -> str | None:
        """Return which of its kernels run on this machine, and why; None if there is no choice.

        Raises ConfigError if none do.
        """
        return None

    def kernel_kind(self, deterministic: bool) -> str | None:
        """Return what else than the plan the last bits of results depend on here, but for the
        instruction set of :meth:`packing`; None where on nothing. Raises ConfigError if the backend
        cannot run here."""
        return None

    def packing(self) -> Packing | None:
        """Return the form in which weights are packed on this machine; None if they are not.

        Raises ConfigError if the backend cannot run here.
        """
        return None

    @abstractmethod
    def bind(
        self,
        plan: Plan,
        weights: WeightSource | PackedWeights,
        limits: Limits,
        seat: RankSeat | None = None,
    ) -> Executor:
        """Return an executor for ``plan``; raises ConfigError if it cannot run here.

        Only a backend that :attr:`keeps_weights` takes PackedWeights, and one that
        :attr:`runs_ranks` a ``seat``, where the plan is one rank's.
        """


def _scales_shares(op: ops.Op) -> bool:
    return isinstance(op, ops.Route) and op.share_scale is not None


def _gates_clamped(op: ops.Op) -> bool:
    match op:
        case ops.Gate(activation=kind) | ops.Linear(gated=kind):
            return isinstance(kind, ClampedSwiglu)
    return False
