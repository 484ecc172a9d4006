"""Attention over the paged cache: scratch, work lists and launches of one geometry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.attention_plan import FIELDS, WorkPlanner, split_starts
from penstock.backends.cuda.cache import LayerCache
from penstock.backends.cuda.capability import Capability, capability_of
from penstock.backends.cuda.kernels.attention import attention
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.pages import HEAD_DIMS
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.draft_tree import MAX_ROWS
from penstock.interface.step import StepInput

_ROWS = 64
"""Rows of a tile; ``kernels/attention.py`` says why. More only where a group has more heads."""

_PROGRAMS_PER_PROCESSOR = 2
_INTERPRETED_PROGRAMS = 3
_MOST_PROCESSORS = 192
"""Number of multiprocessors for which scratch is sized on the meta device: no GPU has more yet."""
_PARTS_PER_PROGRAM = 16
"""Number of one-token states per program that scratch has room for: the planner seldom wants as
many."""


class BlockTables(Protocol):
    """The arrays of a step that attention reads on the device, of the layer's group."""

    @property
    def block_ids(self) -> Tensor:
        """int32, the block ids of all sequences, as in ``KvTables``."""
        ...


class TreeRows(NamedTuple):
    """What attention reads of a step with draft trees, int32 on the device."""

    positions: Tensor  # [T], of all rows
    paths: Tensor  # DeviceStep.tree_paths


@dataclass(frozen=True)
class Scores:
    """What becomes of scores before and in their softmax, where a layer has it."""

    softcap: float | None = None
    slopes: Tensor | None = None
    """Float32 ``[heads]``."""
    sinks: Tensor | None = None
    """Float32 ``[heads]``."""


PLAIN: Final = Scores()


class AttentionKernel:
    """``plan.ops.Attention`` of one geometry; layers that have it in common share one.

    ``max_tokens`` and ``max_sequences`` bound a step, ``max_context`` the tokens of a sequence. All
    scratch is allocated here: :attr:`scratch_bytes`, which depends little on any of them.
    ``programs`` share the work, two a multiprocessor unless said otherwise; no result depends on
    how many.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int | None,
        max_tokens: int,
        max_sequences: int,
        max_context: int,
        device: torch.device,
        programs: int | None = None,
        capability: Capability | None = None,
    ) -> None:
        """``capability``: of the GPU that the kernel is for; by default what ``device`` has."""
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} KV heads")
        if head_dim not in HEAD_DIMS:
            raise ValueError(f"a head of {head_dim} is outside 8..256, which attention handles")
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"a scale of scores of {scale} is not positive")
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} shows no token")
        group = heads // kv_heads
        self._heads = heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._log2_scale = scale / math.log(2)
        self._window = window or 0
        self._rows = max(_ROWS, triton.next_power_of_2(group))
        self._programs = programs or _programs(device)
        self.stages = stages_for(capability or capability_of(device))
        starts = split_starts(max_context, windowed=window is not None)
        states = max(self._programs * _PARTS_PER_PROGRAM // kv_heads, len(starts) - 1)
        tile_tokens = self._rows // group
        max_tiles = min(max_tokens, -(-max_tokens // tile_tokens) + 2 * max_sequences)
        self.planner = WorkPlanner(
            group=group,
            kv_heads=kv_heads,
            tile_tokens=tile_tokens,
            window=window,
            starts=starts,
            programs=self._programs,
            capacity=states * group,
        )
        self.max_items = max_tiles + states
        self._starts = torch.from_numpy(starts).to(device)
        rows = (kv_heads, states * group)
        self._partial_sums = torch.zeros((*rows, head_dim), dtype=torch.float32, device=device)
        self._partial_weights = torch.zeros((*rows, 2), dtype=torch.float32, device=device)
        self._finished = torch.zeros(rows, dtype=torch.int32, device=device)

    @property
    def work_shape(self) -> tuple[int, int]:
        """Shape of an int32 array that has room for the work list of any step."""
        return 1 + self.max_items, FIELDS

    @property
    def scratch_bytes(self) -> int:
        """Bytes on the device."""
        own = (self._starts, self._partial_sums, self._partial_weights, self._finished)
        return sum(array.nbytes for array in own)

    def plan_work(self, step: StepInput) -> NDArray[np.int32]:
        """The step's work list, at most :attr:`work_shape`; all layers of the geometry use it."""
        return self.planner.plan(step)

    def run(
        self,
        q: Tensor,
        out: Tensor,
        cache: LayerCache,
        tables: BlockTables,
        work: Tensor,
        tree: TreeRows | None = None,
        scores: Scores = PLAIN,
    ) -> None:
        """Launch ``plan.ops.Attention`` after the layer's keys and values have been written.

        q and out ``[T, heads * head_dim]`` in bfloat16, float16 or float32, with any row stride;
        ``work`` int32 on the device, begins with what :meth:`plan_work` made of this step. Rows
        that are no token of it are left alone. ``tree`` is needed where a sequence of the step
        branches.
        """
        keys, values = cache.keys, cache.values
        quantized = cache.key_scales is not None and cache.value_scales is not None
        columns = max(16, triton.next_power_of_2(self._head_dim))
        product_bytes = 4 if keys.dtype == torch.float32 else 2
        attention[(self._programs,)](
            q,
            out,
            keys,
            values,
            cache.key_scales if quantized else keys,
            cache.value_scales if quantized else values,
            work,
            tables.block_ids,
            tree.positions if tree else work,
            tree.paths if tree else work,
            self._starts,
            self._partial_sums,
            self._partial_weights,
            self._finished,
            self._starts if scores.slopes is None else scores.slopes,
            self._starts if scores.sinks is None else scores.sinks,
            q.stride(0),
            out.stride(0),
            self._log2_scale,
            (scores.softcap or 1.0) / math.log(2),
            HEADS=self._heads,
            KV_HEADS=self._kv_heads,
            HEAD_DIM=self._head_dim,
            COLUMNS=columns,
            ROWS=self._rows,
            TILE=_tile(columns * product_bytes),
            WINDOW=self._window,
            BLOCK_SIZE=BLOCK_SIZE,
            FIELDS=FIELDS,
            CAPACITY=self.planner.capacity,
            TREE=tree is not None,
            MAX_ROWS=MAX_ROWS,
            QUANTIZED=quantized,
            CAPPED=scores.softcap is not None,
            SLOPED=scores.slopes is not None,
            HAS_SINKS=scores.sinks is not None,
            PRECISION="tf32x3" if keys.dtype == torch.float32 else "ieee",
            STAGES=self.stages - (product_bytes == 4),
            INTERPRETED=INTERPRETED,
            num_warps=8 if columns > 128 or self._rows > _ROWS else 4,
            enable_fp_fusion=False,
        )


def _tile(row_bytes: int) -> int:
    """Tokens of a tile of keys whose rows, as products take them, have so many bytes."""
    if row_bytes <= 256:
        return 64
    return 32 if row_bytes <= 512 else 16


def stages_for(capability: tuple[int, int]) -> int:
    """Loop stages on a GPU of this compute capability, of which one loads block ids.

    Three hold two tiles of keys and of values, 64 KiB, where two such programs fit a
    multiprocessor: on data centre GPUs. Float32, whose products need more, has one stage fewer.
    """
    return 3 if capability[0] in (9, 10) or capability == (8, 0) else 2


def _programs(device: torch.device) -> int:
    """As many as the device holds at once: more would wait until the first are done."""
    if device.type == "cpu":
        return _INTERPRETED_PROGRAMS
    processors = _MOST_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * _PROGRAMS_PER_PROCESSOR
