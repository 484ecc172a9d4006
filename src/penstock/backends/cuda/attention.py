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

from penstock.backends.cuda.attention_plan import (
    FIELDS,
    FIRST_SPLIT,
    STATE_TOKENS,
    WorkPlanner,
    split_starts,
)
from penstock.backends.cuda.cache import LatentCache, LayerCache
from penstock.backends.cuda.capability import Capability, capability_of
from penstock.backends.cuda.kernels.attention import attention
from penstock.backends.cuda.kernels.codes import PLAIN as PLAIN_KIND
from penstock.backends.cuda.kernels.codes import as_bytes, kind_of_keys, kind_of_values, run_of
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.latent_tiling import latent_tiling
from penstock.backends.cuda.pages import HEAD_DIMS, LATENT_DIMS, TAIL_DIMS
from penstock.cache.geometry import BLOCK_SIZE, Chunk, KvDType, Window, window_size
from penstock.interface.draft_tree import MAX_ROWS
from penstock.interface.step import StepInput

_ROWS = 64
"""Rows of a tile; ``kernels/attention.py`` says why. More only where a group has more heads."""

_INTERPRETED_PROGRAMS = 3
_MOST_PROCESSORS = 192
"""Number of multiprocessors for which scratch is sized on the meta device: no GPU has more yet."""
_PARTS_PER_PROGRAM = 16
"""Number of one-token states per program that scratch has room for: the planner seldom wants as
many."""
_LATENT_PARTS_PER_PROGRAM = 4
"""The same over latents, whose states are large: 256 KiB of a token with 128 heads."""
_LATENT_STATE_TOKENS = 4
"""What a row's state takes that is written and read, in tokens: 4 KiB of a latent of 512 against
1152 bytes."""


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
    slope_factor: float | None = None
    """What multiplies slopes times positions, rounded; None: these are not rounded."""


PLAIN: Final = Scores()


class AttentionKernel:
    """``plan.ops.Attention`` of one geometry; layers that have it in common share one.

    ``max_tokens`` and ``max_sequences`` bound a step, ``max_context`` the tokens of a sequence. All
    scratch is allocated here: :attr:`scratch_bytes`, which depends little on any of them.
    ``programs`` share the work, as many as the GPU holds at once unless said otherwise; no result
    depends on how many. With a ``value_dim`` the cache is of latents, of type ``kv_dtype``.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: Window | None,
        max_tokens: int,
        max_sequences: int,
        max_context: int,
        device: torch.device,
        programs: int | None = None,
        capability: Capability | None = None,
        value_dim: int | None = None,
        kv_dtype: KvDType = "bfloat16",
        whole_group: int | None = None,
    ) -> None:
        """``capability``: of the GPU that the kernel is for; by default what ``device`` has.
        ``whole_group``: the query heads of a KV head, where these are a rank's, which may have some
        of them: tiles and warps are those of all, or rows might be summed otherwise."""
        _check(heads, kv_heads, head_dim, value_dim, scale, window)
        at = capability or capability_of(device)
        self._heads = heads
        self._head_dim = head_dim if value_dim is None else value_dim
        self._tail = head_dim - self._head_dim
        self._log2_scale = scale / math.log(2)
        self._window, self._chunk = 0, 0
        if isinstance(window, Chunk):
            self._chunk = window.size
        elif window is not None:
            self._window = window
        self.stages = stages_for(at)
        self._latent = None
        if value_dim is not None:
            product_bytes = 4 if kv_dtype == "float32" else 2
            self._latent = latent_tiling(heads, value_dim, product_bytes, at)
            kv_heads = self._latent.groups
        group = heads // kv_heads
        self._kv_heads = kv_heads
        """Those of the cache; over latents, the groups of query heads that read them."""
        tile_group = max(group, whole_group or 0)
        self._rows = self._latent.rows if self._latent else max(_ROWS, _power_of_2(tile_group))
        self._programs = programs or _programs(device, 1 if self._latent else 2)
        starts = split_starts(
            max_context,
            windowed=window is not None,
            first=FIRST_SPLIT * 2 if self._latent else FIRST_SPLIT,
        )
        parts = _LATENT_PARTS_PER_PROGRAM if self._latent else _PARTS_PER_PROGRAM
        states = max(self._programs * parts // kv_heads, len(starts) - 1)
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
            state_tokens=_LATENT_STATE_TOKENS if self._latent else STATE_TOKENS,
        )
        self.max_items = max_tiles + states
        self._starts = torch.from_numpy(starts).to(device)
        rows = (kv_heads, states * group)
        sums = (*rows, self._head_dim)
        self._partial_sums = torch.zeros(sums, dtype=torch.float32, device=device)
        self._partial_weights = torch.zeros((*rows, 2), dtype=torch.float32, device=device)
        self._finished = torch.zeros(rows, dtype=torch.int32, device=device)
        self._columns = max(16, _power_of_2(self._head_dim))
        self._constants = self._geometry()

    def _geometry(self) -> dict[str, int | bool]:
        """Constants that all launches compile the kernel with."""
        return {
            "HEADS": self._heads,
            "KV_HEADS": self._kv_heads,
            "HEAD_DIM": self._head_dim,
            "TAIL": self._tail,
            "COLUMNS": self._columns,
            "RUN": run_of(self._head_dim),
            "LEVELS": run_of(self._head_dim).bit_length() - 1,
            "TAIL_COLUMNS": max(16, _power_of_2(self._tail)),
            "ROWS": self._rows,
            "WINDOW": self._window,
            "CHUNK": self._chunk,
            "BLOCK_SIZE": BLOCK_SIZE,
            "FIELDS": FIELDS,
            "CAPACITY": self.planner.capacity,
            "MAX_ROWS": MAX_ROWS,
            "INTERPRETED": INTERPRETED,
        }

    def _tiling(self, product_bytes: int) -> tuple[int, int, int]:
        """Tokens of a tile of keys, loop stages and warps, where products are of numbers of so many
        bytes."""
        if self._latent is not None:
            return self._latent.tile, self._latent.stages, self._latent.warps
        tile, stages = _tile(self._columns * product_bytes), self.stages - (product_bytes == 4)
        return tile, stages, 8 if self._columns > 128 or self._rows > _ROWS else 4

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
        cache: LayerCache | LatentCache,
        tables: BlockTables,
        work: Tensor,
        tree: TreeRows | None = None,
        scores: Scores = PLAIN,
    ) -> None:
        """Launch ``plan.ops.Attention`` after the layer's keys and values have been written.

        q ``[T, heads * head_dim]`` and out, whose heads over latents have ``value_dim`` columns, in
        bfloat16, float16 or float32, with any row stride; ``work`` int32 on the device, begins with
        what :meth:`plan_work` made of this step. Rows that are no token of it are left alone.
        ``tree`` is needed where a sequence of the step branches.
        """
        if isinstance(cache, LatentCache):
            keys = values = cache.rows
            kinds = PLAIN_KIND, PLAIN_KIND
            scales = cache.latent_scales, cache.key_scales
        else:
            keys, values = as_bytes(cache.keys), as_bytes(cache.values)
            kinds = kind_of_keys(cache.keys), kind_of_values(cache.values)
            scales = cache.key_scales, cache.value_scales
        exact = keys.dtype == torch.float32
        tile, stages, warps = self._tiling(4 if exact else 2)
        attention[(self._programs,)](
            q,
            out,
            keys,
            values,
            keys if scales[0] is None else scales[0],
            values if scales[1] is None else scales[1],
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
            (scores.slope_factor or 1.0) / math.log(2),
            **self._constants,
            TILE=tile,
            TREE=tree is not None,
            QUANTIZED=scales[0] is not None,
            KEY_KIND=kinds[0],
            VALUE_KIND=kinds[1],
            CAPPED=scores.softcap is not None,
            SLOPED=scores.slopes is not None,
            ROUNDED=scores.slope_factor is not None,
            HAS_SINKS=scores.sinks is not None,
            PRECISION="tf32x3" if exact else "ieee",
            STAGES=stages,
            num_warps=warps,
            enable_fp_fusion=False,
        )


def _check(
    heads: int,
    kv_heads: int,
    head_dim: int,
    value_dim: int | None,
    scale: float,
    window: Window | None,
) -> None:
    """Raise ValueError for a geometry that has no kernel."""
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} KV heads")
    if value_dim is None and head_dim not in HEAD_DIMS:
        raise ValueError(f"a head of {head_dim} is outside 8..256, which attention handles")
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"a scale of scores of {scale} is not positive")
    if window is not None and window_size(window) < 1:
        raise ValueError(f"a window of {window} shows no token")
    if value_dim is not None:
        tail = head_dim - value_dim
        if kv_heads != 1 or value_dim not in LATENT_DIMS or tail not in TAIL_DIMS:
            raise ValueError(f"{kv_heads} latents of {value_dim} in {head_dim} have no kernel")


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


def _power_of_2(count: int) -> int:
    """Return the least power of 2 that is no less than ``count``."""
    return int(triton.next_power_of_2(count))


def _programs(device: torch.device, per_processor: int) -> int:
    """As many as the device holds at once: more would wait until the first are done."""
    if device.type == "cpu":
        return _INTERPRETED_PROGRAMS
    processors = _MOST_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * per_processor
