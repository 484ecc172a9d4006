"""The plan: what one step of a model runs, before any backend is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from penstock.cache.geometry import BLOCK_SIZE, KvDType, float_dtype
from penstock.interface.adapters import AdapterSlots
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Stored
from penstock.models.spec import DType, ModelSpec, RopeSpec
from penstock.plan.key_columns import KeyColumns
from penstock.plan.kv_groups import KvGroups, KvLayer, group_layers, groups_of
from penstock.plan.ops import (
    AdapterDown,
    AdapterUp,
    Buffer,
    BufferName,
    ExpertLinear,
    Features,
    Op,
    WeightName,
)
from penstock.plan.state_layers import StateLayer

_STATE_INTERVAL = 32 * BLOCK_SIZE
"""Tokens between kept states of a model without keys and values."""


@dataclass(frozen=True)
class Plan:
    """A list of ops over named buffers, run in order; the unit that backends bind.

    ``weight_dtype`` is the type of weights in memory, ``kv_dtype`` that of the KV cache; buffers
    carry their element types: what products read is float32, or the plan's 16-bit type.
    """

    spec: ModelSpec
    weight_dtype: DType
    kv_dtype: KvDType
    ops: tuple[Op, ...]
    weights: dict[WeightName, PlanWeight]
    """All weights by canonical name, in the order in which ops first read them."""
    buffers: dict[BufferName, Buffer]
    ropes: tuple[RopeSpec, ...]  # distinct tables; ops refer to them by index
    kv_layers: tuple[KvLayer, ...]
    logits: BufferName | None
    """None, as are the two that follow, for a stage of a pipeline that is not the last."""
    argmax: BufferName | None
    hidden: BufferName | None
    """The selected rows after the final norm, as the output matrix reads them. For a draft head,
    what its next row is given as features."""
    max_positions: int
    """Number of rows of the rope tables. What memory holds may lower it, and changes no row."""
    taps: BufferName | None = None
    """The selected rows of the residual stream at the input of each tapped layer, side by side in
    the order of the taps: ``[S, taps * hidden]`` float32."""
    more_logits: tuple[BufferName, ...] = ()
    """Logits of the second and later heads, each ``[R, outputs]``."""
    state_layers: tuple[StateLayer, ...] = ()
    """What each layer that keeps a state of a sequence has in its slot; ops refer to them by
    index."""
    key_columns: tuple[KeyColumns, ...] = ()
    """What keys are centered and scaled by as they are cached, and queries scaled by as they are
    multiplied with them; empty where keys are cached as they are."""
    kv_runs: tuple[tuple[int, ...], ...] | None = None
    """The cached layers of each group, where a plan is one rank's: those of the whole plan, since
    one scheduler has the tables of all ranks. None: chosen by the layers' sizes."""
    leaving: tuple[BufferName, ...] = ()
    """The buffers, of token rows, that a stage which is not the last hands to the next ones
    (``plan/stages.py``), or what a piece of a plan returns (``plan/pieces.py``), which may have
    several rows for each token. They are a step's result, too."""
    token_offsets: Stored | None = None
    """The tensor, integers ``[outputs]``, that says what to add to the number of each column of the
    logits to get its token; None where a column is the token of its number."""

    adapters: AdapterSlots | None = None
    """Where rows may have adapters, how many and of which rank (``plan/adapt.py``)."""

    @cached_property
    def kv_groups(self) -> KvGroups:
        """Which cached layers share pages; ``StepInput.groups`` has tables of each group."""
        if self.kv_runs is not None:
            return groups_of(self.kv_layers, self.kv_runs, self.kv_dtype)
        return group_layers(self.kv_layers, self.kv_dtype)

    @property
    def state_dtype(self) -> DType:
        """The type in which slots keep inputs of convolutions: the KV cache's, or of one of
        codes the weights'."""
        return float_dtype(self.kv_dtype, otherwise=self.weight_dtype)

    def state_bytes(self, log: int) -> int:
        """Bytes of what a state slot holds of which ``log`` tokens may be taken back; 0 where no
        layer keeps a state. A backend may lay it out with gaps (``Backend.state_bytes``)."""
        return sum(layer.num_bytes(self.state_dtype, log) for layer in self.state_layers)

    def state_interval(self, state_bytes: int) -> int:
        """Tokens, in whole blocks, of which keys and values take as many bytes as a state."""
        block = sum(layer.block_bytes(self.kv_dtype) for layer in self.kv_layers)
        if block == 0:
            return _STATE_INTERVAL
        return -(-state_bytes // block) * BLOCK_SIZE

    @property
    def num_parameters(self) -> int:
        """Number of values of all weights; a tied embedding counts once."""
        # What the inputs of adapters were divided by is no parameter of the model.
        ours = (op for op in self.ops if isinstance(op, AdapterDown | AdapterUp))
        factors = {name for op in ours for name in op.weights}
        own = (weight for name, weight in self.weights.items() if name not in factors)
        return sum(math.prod(weight.shape) for weight in own)

    @property
    def active_parameters(self) -> int:
        """Number of values of the weights that a token is computed with: all, but of experts those
        that it is given to."""
        idle = 0
        for op in self.ops:
            if isinstance(op, ExpertLinear):
                for name in op.weights:
                    experts, *matrix = self.weights[name].shape
                    idle += math.prod(matrix) * (experts - self.buffers[op.ids].cols)
        return self.num_parameters - idle

    @property
    def feature_size(self) -> int:
        """Number of columns of ``StepInput.features`` that the plan reads; 0 if it reads none."""
        return max((op.first + op.cols for op in self.ops if isinstance(op, Features)), default=0)

    @property
    def takes_from_target(self) -> bool:
        """Whether weights are in the checkpoint of the model that this one drafts for."""
        return any(weight.checkpoint == "target" for weight in self.weights.values())

    @property
    def results(self) -> tuple[BufferName, ...]:
        """The buffers that make up a step's result."""
        single = (self.logits, self.argmax, self.hidden, self.taps)
        return (*filter(None, single), *self.more_logits, *self.leaving)
