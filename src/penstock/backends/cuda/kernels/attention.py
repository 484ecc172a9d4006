"""Paged attention: one kernel for decode rows, prefill chunks and any mix of them.

Work. A *tile* is up to ``ROWS // group`` consecutive tokens of one sequence, whose query heads of
one KV head are folded into ROWS rows of a matrix product. What it sees of the cache is cut into
*splits* at fixed positions. An *item* of the work list is a tile with either all its splits or one
of them; ``attention_plan`` decides which, by what keeps the device busy, since no result depends
on it. As many programs as the device holds at once share the items in turn, so that the grid is
always the same, and a CUDA graph that captured it serves any lengths.

Items of one split leave their state in scratch and count themselves off. The last one of a tile
and KV head joins the states in the order of splits and sets the count back to 0. Stores of
all threads of a program happen before its count (a barrier, then an atomic that releases at device
scope); loads of the last one happen after (the same atomic acquires, and its result reaches the
other threads through a barrier). The states are read past the first-level cache.

The same bits. A row's result is the same beside any others, in a decode step or a chunk, because

- tiles of keys and splits lie at fixed positions, and a row's splits are joined in ascending order
starting from an empty state, by one function, whichever program does it and wherever the states
were; - it is one compiled kernel for all rows: ROWS, TILE, warps and the instructions of products
do not depend on how many rows are in use. Lanes and warps do the same for each row, so that the
order in which a row's scores are summed does not depend on its place in the tile; - on a GPU, a row
of a product depends on that row of its first operand alone, and products that are zero leave an
accumulator as it is: an invisible key has weight zero, its score is replaced; - a tile of keys that
a row does not see fades by exp2(0), which is 1, and adds zeros. An empty state joins likewise.
Zeros may change sign at that: the end adds +0; - masked and unmasked tiles have the same arithmetic
in the same layouts, and nothing is contracted to fused multiply-adds that is not written so
(``enable_fp_fusion=False``).

The interpreter shows the first and the fourth; the others are properties of the compiler and the
device, which the same tests check where there is a GPU.

Draft trees. Rows behind a sequence's fork see keys that lie in the order of rows, not of positions.
A tile of them takes what precedes the fork's tile of keys together. From there on each token has
tiles of its own, whose keys are looked up by position along its path: the keys, and the order in
which they are summed, are those of decoding that path alone. Steps without a fork run a kernel
that was compiled without this (TREE).

Types. Products are of the cache's type: bfloat16, float16, and float32 as three TF32 products,
which is float32 but for the last bits. Queries and softmax weights are rounded to it. int8 codes
are whole numbers that bfloat16 holds exactly, as it does codes of 4 bits and floats of 8; a key's
scale multiplies its column of scores, a value's the column of weights, each once. Keys in int8 and
int4, and values in int4, are turned (``plan.ops.KvWrite``): queries are turned when they are read,
and sums of values back at the end.

Floors. Decode reads ``context * 2 * kv_heads * head_dim * element bytes`` a sequence and layer;
the floor is that over the device's bandwidth. At 1K tokens, 8 KV heads of 128 in bfloat16, 4 MiB:
1.25 us on an H100 (3.35 TB/s), of which one SM's share is 15 bytes a clock, so 512 bytes, a
token's key and value, every 34 clocks. 64 rows take for that token 8 clocks of the tensor cores
(at 4096 operations a clock), 4 of exponentials (16 a clock) and 4 of other arithmetic, whether 4
rows are used or all: under half the time the bytes take, and less on an A100 or L40S in proportion
to bandwidth. This is why a decode row can afford the tile of a prefill chunk; 128 rows could not.
64 rows is also the smallest tile that Hopper's and Blackwell's wide instructions take. Prefill's
floor is ``4 * head_dim`` operations a query head and visible token over the tensor rate; from the
second-level cache a tile reads 64 operations a byte, so about 5.5 TB/s there bound it near 350
TFLOP/s on an H100.

Tiles of keys are 64 tokens where a row of one takes at most 256 bytes as products take it, 32 up
to 512, else 16. On an H100, with heads of 128 in bfloat16, the compiled kernel has two of keys and
two of values in 80 KiB of shared memory with the queries, so that two programs fit a
multiprocessor and have 32 KiB each under way while they compute, three times what its share of the
bandwidth takes in a memory latency of 700 ns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.attention_states import join_states, leave_state
from penstock.backends.cuda.kernels.attention_tile import (
    add_tiles,
    join,
    join_sink,
    oldest_seen,
    tile_bounds,
)
from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.codes import turn


# Where they lie in the step's arrays may differ from step to step; the kernel is the same.
@triton.jit(do_not_specialize_on_alignment=["work", "block_ids", "token_positions", "tree_paths"])
def attention(
    q,
    out,
    keys,
    values,
    key_scales,
    value_scales,
    work,
    block_ids,
    token_positions,
    tree_paths,
    split_starts,
    partial_sums,
    partial_weights,
    finished,
    slopes,
    sinks,
    q_stride,
    out_stride,
    log2_scale,
    softcap,
    slope_factor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TAIL: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAIL_COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    FIELDS: tl.constexpr,
    CAPACITY: tl.constexpr,
    TREE: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    ROUNDED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Compute paged attention: programs share the items of ``work`` for every KV head.

    ``work`` is int32 ``[1 + items, FIELDS]``.

    q and out ``[T, HEADS * HEAD_DIM]`` with these row strides; ``partial_sums`` float32
    ``[KV_HEADS, CAPACITY, HEAD_DIM]``, ``partial_weights`` float32 ``[KV_HEADS, CAPACITY, 2]``
    (peak and weight), ``finished`` int32 ``[KV_HEADS, CAPACITY]``, zero between launches. Where
    TREE, int32 ``token_positions`` ``[T]`` and ``tree_paths`` ``[rows, MAX_ROWS]``. ``slopes`` and
    ``sinks`` float32 ``[HEADS]``, read where SLOPED and HAS_SINKS; ``softcap``, where CAPPED, and
    ``slope_factor``, where ROUNDED, are in units of log2.

    With a TAIL, which latents have, q is ``[T, HEADS * (HEAD_DIM + TAIL)]`` and the cache has one
    head, which each of the KV_HEADS groups of query heads reads.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    KEY_DIM: tl.constexpr = HEAD_DIM + TAIL
    CACHED_HEADS: tl.constexpr = 1 if TAIL else KV_HEADS
    product_type: tl.constexpr = tl.bfloat16 if QUANTIZED else keys.dtype.element_ty
    folded = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    within = column < HEAD_DIM
    for index in range(tl.program_id(0), tl.load(work) * KV_HEADS, tl.num_programs(0)):
        item = work + (1 + index // KV_HEADS) * FIELDS
        head = index % KV_HEADS
        row = tl.load(item)
        tokens = tl.load(item + 1)
        position = tl.load(item + 2)
        table = block_ids + tl.load(item + 3)
        begin = tl.load(item + 4)
        end = tl.load(item + 5)
        parts = tl.load(item + 6)
        part = tl.load(item + 7)
        base = tl.load(item + 8)
        stop = tl.load(item + 9)

        rows = tokens * GROUP
        inside = (folded < rows)[:, None] & within[None, :]
        token = folded // GROUP
        query_head = head * GROUP + folded % GROUP
        columns = query_head[:, None] * HEAD_DIM + column[None, :]
        token_row = (row + token).to(tl.int64)[:, None]
        asked = q + token_row * q_stride + (query_head * KEY_DIM)[:, None]
        query, query_tail = load_queries(
            asked, inside, (folded < rows)[:, None], product_type, HEAD_DIM, TAIL, TAIL_COLUMNS,
            RUN, LEVELS, KEY_KIND, INTERPRETED,
        )  # fmt: skip
        cached_head = head * 0 if TAIL else head
        positions = position + token
        slope = tl.zeros([ROWS], tl.float32)
        if SLOPED:
            slope = tl.load(slopes + query_head, mask=folded < rows, other=0.0)
            if not ROUNDED:
                slope = slope * 1.4426950408889634
        least = oldest_seen(position, WINDOW, CHUNK) if WINDOW + CHUNK else 0
        oldest = position
        fork, path, paths = position, tree_paths, 0
        if TREE:
            positions = tl.load(token_positions + row + token, mask=folded < rows, other=0)
            fork = tl.load(item + 10)
            path = tree_paths + tl.load(item + 11) * MAX_ROWS
            paths = tl.where(fork >= 0, tokens, 0)
            # What rows have in common ends before the fork, wherever they are themselves.
            oldest = tl.where(fork >= 0, fork - 1, position)

        peak = tl.full([ROWS], float("-inf"), tl.float32)
        weight = tl.zeros([ROWS], tl.float32)
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for split in range(begin, end):
            split_peak, split_weight, split_sums = split_state(
                split_starts + split, oldest, stop, query, query_tail, positions, least,
                cached_head, table, keys, values, key_scales, value_scales, log2_scale, softcap,
                slope, slope_factor, tree_paths, path, fork, paths, token_positions + row, token,
                TREE, MAX_ROWS, CAPPED, SLOPED, ROUNDED, CACHED_HEADS, HEAD_DIM, TAIL, COLUMNS,
                TILE, WINDOW, CHUNK, BLOCK_SIZE, QUANTIZED, KEY_KIND, VALUE_KIND, PRECISION, STAGES,
                INTERPRETED,
            )  # fmt: skip
            peak, weight, sums = join(peak, weight, sums, split_peak, split_weight, split_sums)

        target = out + token_row * out_stride + columns
        finish(
            target, inside, peak, weight, sums, parts, part, rows, head * CAPACITY + base,
            partial_sums, partial_weights, finished, sinks, query_head,
            ROWS, COLUMNS, HEAD_DIM, RUN, LEVELS, VALUE_KIND, HAS_SINKS, INTERPRETED,
        )  # fmt: skip


@triton.jit
def load_queries(
    asked, inside, used, product_type: tl.constexpr, HEAD_DIM: tl.constexpr, TAIL: tl.constexpr,
    TAIL_COLUMNS: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, KIND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Return a tile's queries, as products take them, and their tails; without a TAIL, themselves.

    ``asked`` points at each row's query; ``inside`` ``[ROWS, COLUMNS]``: which columns there are;
    ``used`` ``[ROWS, 1]``: which rows.
    """
    column = tl.arange(0, inside.shape[1])
    query = tl.load(asked + column[None, :], mask=inside, other=0.0)
    query = query.to(tl.float32)
    if KIND == 1 or KIND == 3:
        query = turn(query, RUN, LEVELS)
    query = cast(query, product_type, INTERPRETED)
    query_tail = query
    if TAIL:
        behind = tl.arange(0, TAIL_COLUMNS)[None, :]
        query_tail = tl.load(asked + HEAD_DIM + behind, mask=used & (behind < TAIL), other=0.0)
        query_tail = cast(query_tail.to(tl.float32), product_type, INTERPRETED)
    return query, query_tail


@triton.jit
def split_state(
    starts, oldest, stop, query, query_tail, positions, least,
    head, table, keys, values, key_scales, value_scales, log2_scale, softcap,
    slope, slope_factor, no_path, path, fork, paths, row_positions, token,
    TREE: tl.constexpr,
    MAX_ROWS: tl.constexpr,
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
):  # fmt: skip
    """Return the state of a tile's rows after one split of the cache, that at ``starts``.

    Where TREE, each of ``paths`` tokens, whose positions are at ``row_positions``, has tiles of its
    own from position ``fork`` on, along its row of ``path``.
    """
    first, whole, whole_end, last = tile_bounds(
        tl.load(starts), tl.load(starts + 1), oldest, stop, TILE, WINDOW, CHUNK
    )
    peak = tl.full([query.shape[0]], float("-inf"), tl.float32)
    weight = tl.zeros([query.shape[0]], tl.float32)
    sums = tl.zeros([query.shape[0], COLUMNS], tl.float32)
    line_end = last
    if TREE:
        line_end = tl.where(fork >= 0, whole_end, last)
    # Tiles that the window's old end cuts, that all rows see whole, that are cut by now.
    for phase in tl.static_range(0 if WINDOW + CHUNK else 1, 3):
        peak, weight, sums = add_tiles(
            peak, weight, sums, query, query_tail, positions,
            first if phase == 0 else (whole if phase == 1 else whole_end),
            whole if phase == 0 else (whole_end if phase == 1 else line_end),
            least, last, head, table, keys, values, key_scales, value_scales, log2_scale,
            no_path, 0, softcap, slope, slope_factor,
            phase != 1, False, CAPPED, SLOPED, ROUNDED, KV_HEADS, HEAD_DIM, TAIL, COLUMNS, TILE,
            WINDOW, CHUNK, BLOCK_SIZE, QUANTIZED, KEY_KIND, VALUE_KIND, PRECISION, STAGES,
            INTERPRETED,
        )  # fmt: skip
    if TREE:
        # Behind the fork each token has tiles of its own, in which all rows take part, so that
        # arithmetic stays in its layouts, and its own rows keep what comes of it.
        for i in range(paths):
            end_of_path = tl.minimum(last, tl.load(row_positions + i) + 1)
            own_peak, own_weight, own_sums = add_tiles(
                peak, weight, sums, query, query_tail, positions, whole_end, end_of_path,
                least, end_of_path, head, table, keys, values, key_scales, value_scales, log2_scale,
                path + i * MAX_ROWS, fork, softcap, slope, slope_factor,
                True, True, CAPPED, SLOPED, ROUNDED, KV_HEADS, HEAD_DIM, TAIL, COLUMNS, TILE,
                WINDOW, CHUNK, BLOCK_SIZE, QUANTIZED, KEY_KIND, VALUE_KIND, PRECISION, STAGES,
                INTERPRETED,
            )  # fmt: skip
            own = token == i
            peak = tl.where(own, own_peak, peak)
            weight = tl.where(own, own_weight, weight)
            sums = tl.where(own[:, None], own_sums, sums)
    return peak, weight, sums


@triton.jit
def finish(
    target, inside, peak, weight, sums, parts, part, rows, scratch,
    partial_sums, partial_weights, finished, sinks, query_head,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
    KIND: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Store a tile's result, where all its splits have been seen; else leave the state of this one
    from row ``scratch`` on, and the last one joins those of all."""
    if parts == 1:
        weight, sums = join_sink(peak, weight, sums, sinks, query_head, rows, HAS_SINKS)
        store_result(target, weight, sums, inside, RUN, LEVELS, KIND, INTERPRETED)
    else:
        last_one = leave_state(
            partial_sums, partial_weights, finished + scratch, scratch + part * rows, parts,
            peak, weight, sums, rows, HEAD_DIM,
        )  # fmt: skip
        if last_one:
            peak, weight, sums = join_states(
                partial_sums, partial_weights, scratch, parts, rows, ROWS, COLUMNS, HEAD_DIM
            )
            weight, sums = join_sink(peak, weight, sums, sinks, query_head, rows, HAS_SINKS)
            store_result(target, weight, sums, inside, RUN, LEVELS, KIND, INTERPRETED)
            tl.store(finished + scratch, 0)


@triton.jit
def store_result(
    target, weight, sums, inside, RUN: tl.constexpr, LEVELS: tl.constexpr, KIND: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Divide, round and store, turned back where values are of that KIND. Adding zero turns -0 into
    +0, which rows that saw more empty tiles have."""
    if KIND == 1:
        sums = turn(sums, RUN, LEVELS)
    result = cast(sums / weight[:, None] + 0.0, target.dtype.element_ty, INTERPRETED)
    tl.store(target, result, mask=inside)
