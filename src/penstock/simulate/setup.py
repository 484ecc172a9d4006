"""What is simulated: the limits of a replica, what its steps take, and how many replicas there
are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.cache.geometry import BLOCK_SIZE, Window
from penstock.cache.kv_cache import KvCache
from penstock.cache.state_slots import StateLimits
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.length_limits import LengthLimits
from penstock.scheduler.scheduler import Scheduler
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.handed import Way
from penstock.simulate.model_key import Covered
from penstock.simulate.stages import Stages
from penstock.simulate.uneven import Unevenness


@dataclass(frozen=True)
class ReplicaLimits:
    """What the options of an engine amount to, as far as its scheduler and its books know them."""

    max_num_seqs: int
    max_num_batched_tokens: int
    lengths: LengthLimits
    num_blocks: int
    windows: tuple[Window | None, ...] = (None,)
    """The window of each group of cached layers."""
    states: StateLimits | None = None
    enable_prefix_caching: bool = True
    block_size: int = BLOCK_SIZE
    disk_blocks: int | None = None
    """Blocks that a disk below the pool holds; None: there is none."""
    max_waiting: int = MAX_WAITING
    """Requests that may wait besides those that run; more are refused, as ``penstock serve``
    does."""

    def scheduler(self, depth: int = 1) -> Scheduler:
        """``depth``: the steps that may be in flight, among which sequences are divided."""
        cache = KvCache(
            self.num_blocks,
            self.block_size,
            windows=self.windows,
            enable_prefix_caching=self.enable_prefix_caching,
            states=self.states,
        )
        return Scheduler(
            cache,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.lengths,
            surely=self.lengths.bounded,
            batches=depth,
            depth=max(depth, 2),
        )


@dataclass(frozen=True)
class Apart:
    """Engines that compute the prompts of a replica, each like that which answers."""

    engines: int
    group_bytes: tuple[int, ...]
    """Bytes of a block of the cache, for each group of layers."""
    way: Way
    """What joins them."""
    least_tokens: int | None = None
    max_wait_s: float = 10.0
    """Both as of :class:`penstock.handover_config.DecodeRole`."""


@dataclass(frozen=True)
class Setup:
    """One configuration."""

    name: str
    limits: ReplicaLimits
    stages: Stages
    front: FrontTimes
    replicas: int = 1
    routing: str = "round-robin"
    apart: Apart | None = None
    """What computes prompts apart; None: one engine does all."""
    template: int = 0
    """Tokens that the chat template adds to every prompt."""
    uneven: Unevenness | None = None
    """How much steps of the same size differ; None: not at all."""
    covered: Covered | None = None
    """How far steps were measured; None: what they take is a bound, of steps of any size."""
    options: dict[str, str] = field(default_factory=dict)
    """The options that it was made of, as they were written."""
    notes: Sequence[str] = ()
    """What its figures rest on."""
