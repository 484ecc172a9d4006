"""Sequences, caches full of NaN where nothing was written, and steps of attention over them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backends.cuda.attention import PLAIN, AttentionKernel, Scores, TreeRows
from penstock.backends.cuda.attention_plan import tree_paths
from penstock.backends.cuda.cache import Cache, LatentCache, allocate
from penstock.backends.cuda.kernels.codes import as_bytes
from penstock.backends.reference.cache import float8_heads, quantize_heads, turn_heads
from penstock.backends.reference.numerics import attend
from penstock.backends.reference.products import F32
from penstock.cache.geometry import (
    BLOCK_SIZE,
    Chunk,
    KvDType,
    PartDType,
    Window,
    first_seen,
    is_coded,
    part_dtypes,
)
from penstock.interface.step import KvTables, StepInput
from penstock.plan.kv_groups import KvLayer
from support.attention_parts import Part

TYPES: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    kv: KvDType = "bfloat16"
    window: Window | None = None
    activation: str = "float32"
    value_dim: int | None = None
    """Components of a latent, of the ``head_dim`` that are cached."""

    @property
    def out_dim(self) -> int:
        """Columns of a head's output."""
        return self.value_dim or self.head_dim

    def kernel(self, device: Any, programs: int | None = None) -> AttentionKernel:
        kernel = AttentionKernel(
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.head_dim**-0.5,
            self.window,
            max_tokens=512,
            max_sequences=16,
            max_context=8000,
            device=device,
            programs=programs,
            value_dim=self.value_dim,
            kv_dtype=self.kv,
        )
        return kernel

    def cached(self, x: F32, *, values: bool = False) -> F32:
        """Keys, or values, as the cache holds them."""
        part = part_dtypes(self.kv)[values]
        if part not in ("int8", "int4", "fp8"):
            return x.astype(TYPES[part]).astype(np.float32)
        cuts = [] if self.value_dim is None else [self.value_dim]
        turned = self.turns(part, values=values)
        x = turn_heads(x) if turned else x
        pieces = [widened(*coded(piece, part)) for piece in np.split(x, cuts, axis=-1)]
        result: F32 = np.concatenate(pieces, axis=-1)
        return turn_heads(result) if turned else result

    def turns(self, part: PartDType, *, values: bool = False) -> bool:
        """Whether keys in ``part``, or values, are turned before they are rounded."""
        return part == "int4" or (part == "int8" and not values and self.value_dim is None)

    def asked(self, q: F32) -> F32:
        """Queries as products take them, but turned back where they take them turned."""
        q = q.astype(TYPES[self.activation]).astype(np.float32)
        if self.turns(part_dtypes(self.kv)[0]):
            return turn_heads(turn_heads(q).astype(TYPES["bfloat16"]).astype(np.float32))
        return q.astype(TYPES["bfloat16" if is_coded(self.kv) else self.kv]).astype(np.float32)


def coded(x: F32, part: PartDType) -> tuple[NDArray[Any], NDArray[Any]]:
    """Codes of heads, turned where they are to be, and their scales."""
    if part == "fp8":
        return float8_heads(x)
    return quantize_heads(x, 8, -8, 7) if part == "int4" else quantize_heads(x)


def widened(codes: NDArray[Any], scales: NDArray[Any]) -> F32:
    """What codes and their scales stand for."""
    result: F32 = codes.astype(np.float32) * scales.astype(np.float32)[..., None]
    return result


def as_stored(codes: NDArray[Any], part: PartDType) -> NDArray[Any]:
    """Codes as a GPU's cache has them."""
    if part == "fp8":
        return codes.view(np.uint8)
    if part == "int4":
        return ((codes[..., ::2] & 15) | (codes[..., 1::2] << 4)).view(np.uint8)
    return codes


def write(cache: Cache, table: NDArray[np.int32], first: int, keys: F32, values: F32) -> None:
    """Tokens from position ``first`` on, ``[n, kv_heads, D]``, rounded as RopeWrite rounds them."""
    positions = np.arange(first, first + len(keys))
    device = cache.arrays[0].device
    block = torch.from_numpy(table[positions // BLOCK_SIZE].astype(np.int64)).to(device)
    offset = torch.from_numpy(positions % BLOCK_SIZE).to(device)
    if isinstance(cache, LatentCache):
        d = cache.value_dim
        pairs = (
            (cache.rows[..., :d], cache.latent_scales, keys[..., :d]),
            (cache.rows[..., d:], cache.key_scales, keys[..., d:]),
        )
    else:
        pairs = ((cache.keys, cache.key_scales, keys), (cache.values, cache.value_scales, values))
    for i, (array, scales, x) in enumerate(pairs):
        stored: NDArray[Any] = x
        if scales is not None:
            parts: dict[Any, PartDType] = {torch.int8: "int8", torch.uint8: "int4"}
            part = parts.get(array.dtype, "fp8")
            turned = not isinstance(cache, LatentCache) and (
                part == "int4" or (part, i) == ("int8", 0)
            )
            codes, by = coded(turn_heads(x) if turned else x, part)
            stored, array = as_stored(codes, part), as_bytes(array)
            scales[block, :, offset] = torch.from_numpy(by.astype(np.float32)).to(scales)
        array[block, :, offset] = torch.from_numpy(np.ascontiguousarray(stored)).to(array)


def make(shape: Shape, parts: list[Part], device: Any, seed: int = 0) -> tuple[Cache, StepInput]:
    """A cache with what the parts see, in shuffled blocks, and the step; the rest is NaN.

    Blocks wholly behind a window are freed: the tables name block 0 there, which is NaN too.
    """
    counts = [-(-part.end // BLOCK_SIZE) for part in parts]
    free = 1 + np.random.default_rng(seed).permutation(sum(counts)).astype(np.int32)
    layer = KvLayer(shape.kv_heads, shape.head_dim, value_dim=shape.value_dim)
    (cache,) = allocate([layer], shape.kv, sum(counts) + 1, device)
    for array in cache.arrays:
        array.fill_(float("nan") if array.is_floating_point() else 127)
    tables = np.split(free, np.cumsum(counts)[:-1])
    for part, table in zip(parts, tables, strict=True):
        first = 0 if shape.window is None else first_seen(shape.window, part.start)
        table[: first // BLOCK_SIZE] = 0
        known = slice(first, part.end)
        write(cache, table, first, part.sequence.k[known], part.sequence.v[known])
    lengths = [part.end - part.start for part in parts]
    none = np.zeros(0, np.int32)
    step = StepInput(
        token_ids=none,
        positions=none,
        groups=(KvTables(none, np.cumsum([0, *counts], dtype=np.int32), np.concatenate(tables)),),
        query_starts=np.cumsum([0, *lengths], dtype=np.int32),
        context_lens=np.array([part.end for part in parts], np.int32),
        logit_rows=none,
        block_copies=np.zeros((0, 2), np.int32),
    )
    return cache, step


def launch(
    kernel: AttentionKernel,
    shape: Shape,
    parts: list[Part],
    cache: Cache,
    step: StepInput,
    work: NDArray[np.int32],
    scores: Scores = PLAIN,
) -> list[F32]:
    """Output rows ``[queries, heads, D]`` of each part."""
    device = cache.arrays[0].device
    element = getattr(torch, shape.activation)
    q = np.concatenate([part.sequence.q[part.start : part.end] for part in parts])
    rows, columns = len(q), shape.heads * shape.head_dim
    # Rows of wider arrays: strides are the tensors' own.
    wide = torch.full((rows, columns + 16), float("nan"), dtype=element, device=device)
    wide[:, :columns] = torch.from_numpy(q.reshape(rows, columns)).to(wide)
    outs = shape.heads * shape.out_dim
    out = torch.full((rows, outs + 32), -1.0, dtype=element, device=device)
    tables = SimpleNamespace(block_ids=torch.from_numpy(step.groups[0].block_ids).to(device))
    tree = None
    if len(step.tree_parents):
        arrays = (step.positions, tree_paths(step))
        tree = TreeRows(*(torch.from_numpy(array).to(device) for array in arrays))
    on_device = torch.from_numpy(work).to(device)
    kernel.run(wide[:, :columns], out[:, :outs], cache, tables, on_device, tree, scores)
    assert bool((out[:, outs:] == -1).all())
    result = out[:, :outs].float().cpu().numpy().reshape(rows, shape.heads, -1)
    return np.split(result, step.query_starts[1:-1])


def run(
    device: Any,
    shape: Shape,
    parts: list[Part],
    seed: int = 0,
    programs: int | None = None,
    scores: Scores = PLAIN,
) -> list[F32]:
    kernel = shape.kernel(device, programs)
    cache, step = make(shape, parts, device, seed)
    return launch(kernel, shape, parts, cache, step, kernel.plan_work(step), scores)


def expected(shape: Shape, part: Part, scores: Scores = PLAIN, sized: bool = False) -> F32:
    """What the op is defined to be; ``sized``: of the magnitudes of values."""
    s, window = part.sequence, shape.window
    keys = shape.cached(s.k[: part.end])
    if shape.value_dim is None:
        values = shape.cached(s.v[: part.end], values=True)
    else:
        values = keys[..., : shape.value_dim]
    return attend(
        shape.asked(s.q[part.start : part.end]),
        keys,
        np.abs(values) if sized else values,
        np.arange(part.start, part.end, dtype=np.int32),
        shape.head_dim**-0.5,
        None if isinstance(window, Chunk) else window,
        scores.softcap,
        None if scores.slopes is None else scores.slopes.tolist(),
        None if scores.sinks is None else scores.sinks.cpu().numpy(),
        window.size if isinstance(window, Chunk) else None,
        scores.slope_factor,
    )


def assert_close(shape: Shape, part: Part, actual: F32, scores: Scores = PLAIN) -> None:
    """Errors are those of rounding softmax weights to the type of products, and the output."""
    oracle = expected(shape, part, scores)
    size = expected(shape, part, scores, sized=True)
    narrow = 2.0**-8 * 1.05
    relative = {"float32": 2e-5, "float16": 2.0**-11 * 1.1}.get(shape.kv, narrow)
    if shape.activation == "bfloat16":
        relative += narrow
    if part_dtypes(shape.kv)[1] == "int4":  # turned back, an error is spread over the head
        relative, size = 2 * relative, size.mean(axis=-1, keepdims=True)
    error = np.abs(actual - oracle)
    assert np.all(error <= relative * size + 1e-6)
    assert error.mean() <= relative / 3 * size.mean() + 1e-6  # roundings do not all agree
