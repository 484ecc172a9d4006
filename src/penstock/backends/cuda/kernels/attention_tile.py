"""What attention does to a tile of query rows: one tile of keys and values, one split, the end.

A tile's state is the running softmax of its rows: ``peak`` ``[ROWS]``, the largest score so far in
units of log2; ``weight`` ``[ROWS]``, the sum of ``exp2(score - peak)``; ``sums`` ``[ROWS,
COLUMNS]``, the values in those weights. All float32. A row that has seen nothing has peak -inf and
zeros.

``kernels/attention.py`` says what the equality of a row's bits rests on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.codes import decoded
from penstock.backends.cuda.kernels.soft_cap import soft_cap


@triton.jit
def visible(positions, tokens, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return which cached ``tokens`` ``[TILE]`` queries at ``positions`` ``[ROWS]`` see.

    A WINDOW or CHUNK of 0 is none. ``tile_bounds`` knows which tiles need no mask.
    """
    distance = positions[:, None] - tokens[None, :]
    seen = distance >= 0
    if WINDOW:
        seen = seen & (distance < WINDOW)
    if CHUNK:
        seen = seen & (distance <= (positions % CHUNK)[:, None])
    return seen


@triton.jit
def oldest_seen(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Return the first token that the query at ``position`` sees."""
    if WINDOW:
        oldest = tl.maximum(position - WINDOW + 1, 0)
    elif CHUNK:
        oldest = tl.maximum(position, 0) // CHUNK * CHUNK
    else:
        oldest = position * 0
    return oldest


@triton.jit
def tile_bounds(
    start, end, position, stop, TILE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr
):
    """Return what part of the split ``start:end`` queries at ``position : stop`` see.

    Returns the first token of the first tile that one of them sees, of the first that all of them
    see whole, of the first after those, and the end of what the last of them sees.
    """
    first = start
    last = tl.minimum(end, stop)
    if WINDOW or CHUNK:
        first = tl.maximum(first, oldest_seen(position, WINDOW, CHUNK) // TILE * TILE)
    whole_end = tl.maximum(tl.minimum(end, (position + 1) // TILE * TILE), first)
    whole = first
    if WINDOW or CHUNK:
        oldest = oldest_seen(stop - 1, WINDOW, CHUNK)
        whole = tl.minimum(tl.maximum((oldest + TILE - 1) // TILE * TILE, first), whole_end)
    return first, whole, whole_end, last


@triton.jit
def add_tiles(
    peak,
    weight,
    sums,
    query,
    query_tail,
    positions,
    first,
    end,
    least,
    last,
    head,
    table,
    keys,
    values,
    key_scales,
    value_scales,
    log2_scale,
    path,
    fork,
    softcap,
    slope,
    slope_factor,
    MASKED: tl.constexpr,
    PATH: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    ROUNDED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TAIL: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUANTIZED: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Return the state after the tiles of tokens from ``first`` to before ``end``.

    ``table`` points at the sequence's block ids; ``query`` is ``[ROWS, COLUMNS]`` in the type of
    products. MASKED tiles may hold tokens that some rows do not see. Of these only ``least : last``
    are read: the slots of others may hold anything. Where PATH, which is MASKED, tokens from
    position ``fork`` on lie at the places of the sequence's cache that ``path`` points at.

    Where CAPPED, scores stay below ``softcap``; where SLOPED, ``slope`` ``[ROWS]`` times their
    key's distance is added. Both are in units of log2. Where ROUNDED, too, ``slope_factor`` is,
    which then multiplies what slopes and positions come to, rounded to bfloat16.

    Keys and values are of a KIND each (``kernels/codes.py``); where keys are turned, so are
    queries, and where values are, what is added up of them.

    With a TAIL keys are latents, which are the values, too, and TAIL more components behind them,
    whose queries are ``query_tail``. int8 latents are scaled by ``key_scales``, and what is behind
    them by ``value_scales``.
    """
    KEY_DIM: tl.constexpr = HEAD_DIM + TAIL
    column = tl.arange(0, COLUMNS)
    within = column < HEAD_DIM
    behind_latent = tl.arange(0, query_tail.shape[1])
    in_tail = behind_latent < TAIL
    for tile in tl.range(first, end, TILE, num_stages=1 if MASKED else STAGES):
        token = tile + tl.arange(0, TILE)
        if MASKED:
            readable = (token >= least) & (token < last)
            at = token
            if PATH:
                behind = readable & (token >= fork)
                at = tl.where(behind, tl.load(path + (token - fork), mask=behind, other=0), token)
            block = tl.load(table + at // BLOCK_SIZE, mask=readable, other=0)
        else:
            at = token
            block = tl.load(table + at // BLOCK_SIZE)
        cell = (block.to(tl.int64) * KV_HEADS + head) * BLOCK_SIZE + at % BLOCK_SIZE
        if not PATH:
            # A block's tokens are neighbours, also in the rows of scales: 16 bytes at a time.
            cell = tl.max_contiguous(tl.multiple_of(cell, BLOCK_SIZE), BLOCK_SIZE)
        place = place_of(cell, column, KEY_DIM, KEY_KIND)

        if MASKED:
            inside = readable[:, None] & within[None, :]
            key = tl.load(keys + place, mask=inside, other=0)
        elif HEAD_DIM == COLUMNS:
            key = tl.load(keys + place)
        else:
            key = tl.load(keys + place, mask=within[None, :], other=0)
        key = decoded(key, column[None, :], KEY_KIND)
        value_place = place_of(cell, column, KEY_DIM, VALUE_KIND)
        if TAIL:
            value = key
            at_tail = keys + (cell[:, None] * KEY_DIM + HEAD_DIM + behind_latent[None, :])
            if MASKED:
                key_tail = tl.load(at_tail, mask=readable[:, None] & in_tail[None, :], other=0)
            else:
                key_tail = tl.load(at_tail, mask=in_tail[None, :], other=0)
        elif MASKED:
            value = tl.load(values + value_place, mask=inside, other=0)
        elif HEAD_DIM == COLUMNS:
            value = tl.load(values + value_place)
        else:
            value = tl.load(values + value_place, mask=within[None, :], other=0)
        if not TAIL:
            value = decoded(value, column[None, :], VALUE_KIND)

        scores = product(query, tl.trans(key), None, PRECISION, INTERPRETED)
        if QUANTIZED:
            if MASKED:
                key_scale = tl.load(key_scales + cell, mask=readable, other=0)
                value_scale = tl.load(value_scales + cell, mask=readable, other=0)
            else:
                key_scale = tl.load(key_scales + cell)
                value_scale = tl.load(value_scales + cell)
            scores = scores * key_scale.to(tl.float32)[None, :]
            if TAIL:
                more = product(query_tail, tl.trans(key_tail), None, PRECISION, INTERPRETED)
                scores += more * value_scale.to(tl.float32)[None, :]
                value_scale = key_scale
        elif TAIL:
            scores = product(query_tail, tl.trans(key_tail), scores, PRECISION, INTERPRETED)
        unit = log2_scale
        if CAPPED or SLOPED:
            scores = scores * log2_scale
            unit = tl.full([], 1.0, tl.float32)
            if CAPPED:
                scores = soft_cap(scores, softcap)
            if SLOPED and ROUNDED:
                own = rounded(slope * rounded(positions.to(tl.float32), INTERPRETED), INTERPRETED)
                place_of_key = rounded(token.to(tl.float32), INTERPRETED)
                theirs = rounded(slope[:, None] * place_of_key[None, :], INTERPRETED)
                scores += slope_factor * (theirs - own[:, None])
            elif SLOPED:
                scores += slope[:, None] * (token[None, :] - positions[:, None]).to(tl.float32)
        if MASKED:
            seen = visible(positions, token, WINDOW, CHUNK)
            scores = tl.where(seen, scores, float("-inf"))

        higher = tl.maximum(peak, tl.max(scores, axis=1) * unit)
        # A row that has seen nothing: -inf less -inf would be NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        fade = tl.exp2(peak - base)
        # One rounding, asked for: the compiler may contract nothing by itself.
        weights = tl.exp2(tl.fma(scores, unit, -base[:, None]))
        weight = weight * fade + tl.sum(weights, axis=1)
        sums = sums * fade[:, None]
        peak = higher
        if QUANTIZED:
            weights = weights * value_scale.to(tl.float32)[None, :]
            if MASKED:  # a scale of NaN is nothing to rows that do not see it
                weights = tl.where(seen, weights, 0.0)
        weights = cast(weights, query.dtype, INTERPRETED)
        if MASKED and not QUANTIZED:
            finite = tl.abs(value.to(tl.float32)) < float("inf")
            clean = tl.where(finite, value, 0.0)
            sums = product(weights, clean, sums, PRECISION, INTERPRETED)
            if tl.min(finite.to(tl.int32)) == 0:
                bad = tl.where(finite, 0.0, value.to(tl.float32))
                sums = add_seen(sums, weights.to(tl.float32), bad, seen, TILE)
        else:
            sums = product(weights, value, sums, PRECISION, INTERPRETED)
    return peak, weight, sums


@triton.jit
def place_of(cell, column, DIM: tl.constexpr, KIND: tl.constexpr):
    """Return where the elements of components ``column`` of rows ``cell`` are."""
    if KIND == 1:  # two in a byte
        place = cell[:, None] * (DIM // 2) + (column // 2)[None, :]
    else:
        place = cell[:, None] * DIM + column[None, :]
    return place


@triton.jit
def rounded(x, INTERPRETED: tl.constexpr):
    """Return float32 ``x`` rounded to bfloat16, still as float32."""
    return cast(x, tl.bfloat16, INTERPRETED).to(tl.float32)


@triton.jit
def product(a, b, c, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return ``a @ b + c`` in float32; b is converted to the type of a, which holds its values.

    The interpreter neither multiplies nor converts to bfloat16 rightly; float32 holds the same.
    """
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    else:
        b = b.to(a.dtype)
    return tl.dot(a, b, c, input_precision=PRECISION)


@triton.jit
def add_seen(sums, weights, values, seen, TILE: tl.constexpr):
    """Return ``sums + weights @ values`` over what each row sees, some of it not finite.

    In a product a weight of zero would make NaN of them, and a row would depend on later tokens
    of its own chunk.
    """
    token = tl.arange(0, TILE)
    for i in range(TILE):
        at = token == i
        sees = tl.max(tl.where(at[None, :], seen.to(tl.int32), 0), axis=1) != 0
        by = tl.sum(tl.where(at[None, :], weights, 0.0), axis=1)
        value = tl.sum(tl.where(at[:, None], values, 0.0), axis=0)
        sums = sums + tl.where(sees[:, None], by[:, None] * value[None, :], 0.0)
    return sums


@triton.jit
def join_sink(peak, weight, sums, sinks, query_head, rows, HAS_SINKS: tl.constexpr):
    """Return weight and sums with each row's sink, a score without a value, in its softmax.

    ``sinks`` points at one for each query head. Called once for a row, when all else is joined.
    """
    if HAS_SINKS:
        used = tl.arange(0, peak.shape[0]) < rows
        sink = tl.load(sinks + query_head, mask=used, other=0.0) * 1.4426950408889634
        one, none = tl.full(weight.shape, 1.0, tl.float32), tl.zeros_like(sums)
        peak, weight, sums = join(peak, weight, sums, sink, one, none)
    return weight, sums


@triton.jit
def join(peak, weight, sums, next_peak, next_weight, next_sums):
    """Return the state of all that two states have seen, the second's tokens after the first's."""
    higher = tl.maximum(peak, next_peak)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(peak - base)
    next_fade = tl.exp2(next_peak - base)
    weight = weight * fade + next_weight * next_fade
    sums = sums * fade[:, None] + next_sums * next_fade[:, None]
    return higher, weight, sums
