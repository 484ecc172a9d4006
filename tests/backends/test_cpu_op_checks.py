"""Ops that are appended to an executor: what does not fit together is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes
from support.native_executor import (
    BLOCK_BYTES,
    CACHE,
    COLUMNS,
    Buffers,
    append_attention,
    make,
)
from support.native_experts import append_route

from penstock.models.spec import Routing

HUGE = 2**63 - 1


def test_what_an_op_writes_is_not_what_it_reads(one_module: Any) -> None:
    executor = make(one_module, **CACHE)
    a = executor.add_buffer(0, "float32", 16, 64, "T")
    inside = executor.add_buffer(3 * 64, "float32", 16, 64, "T")  # the last row of a
    wide = executor.add_buffer(0, "float32", 32, 128, "T")
    selected = executor.add_buffer(0, "float32", 16, 64, "S")
    heads = executor.add_buffer(64, "float32", 8, 64, "T")
    best = executor.add_buffer(0, "int32", 1, 64, "T")
    matrix = executor.add_matrix("float32", 16, 16, False)
    norm = executor.add_constant(as_bytes(np.ones(16, np.float32)))
    empty = executor.add_constant(np.empty(0, np.uint8))
    angles = {"cos": empty, "sin": empty, "rope_dim": 0, "interleaved": False}
    table = executor.add_constant(as_bytes(np.ones((64, 16), np.float32)))
    positions = {"table": table, "elem": "float32", "rows": 64, "offset": 0}
    ones = executor.add_constant(as_bytes(np.ones(8, np.float32)))
    factors = {"factors": ones, "period": 8, "offset": 0}
    narrow = executor.add_buffer(0, "float32", 8, 32, "T")
    appended: list[Callable[[], Any]] = [
        lambda: executor.append_linear(matrix, None, a, inside, "none"),
        lambda: executor.append_add_norm(a, None, inside, norm, 0.0),
        lambda: executor.append_add_norm(a, inside, a, norm, 0.0),
        lambda: executor.append_select_rows(a, selected, 0),
        lambda: executor.append_argmax(a, best),
        lambda: executor.append_join([a, inside], wide),
        lambda: executor.append_gather_columns(a, [inside], [norm]),
        lambda: executor.append_add_activated(None, a, inside, "silu"),
        lambda: executor.append_add_activated(inside, a, a, "silu"),
        lambda: append_attention(executor, heads, narrow),
        lambda: executor.append_rms_norm(a, inside, norm, 0.0),
        lambda: executor.append_layer_norm(inside, a, norm, None, 0.0),
        lambda: executor.append_head_norm(a, inside, 16, norm, 0.0),
        lambda: executor.append_rope(x=a, out=inside, head_dim=16, **angles),
        lambda: executor.append_gate(a, inside, a, "silu"),
        lambda: executor.append_gate(inside, a, a, "silu"),
        lambda: executor.append_scale(a, inside, 2.0),
        lambda: executor.append_scale_by(a, inside, norm),
        lambda: executor.append_columns(a, narrow, 3),
        lambda: executor.append_soft_cap(a, inside, 2.0),
        lambda: executor.append_clamp(a, inside, 2.0),
        lambda: executor.append_add_positions(x=a, out=inside, **positions),
        lambda: executor.append_scale_by_position(x=a, out=inside, **factors),
        lambda: executor.append_rope_write(
            layer=0,
            qkv=executor.add_buffer(0, "float32", 24, 128, "T"),
            q=heads,
            heads=1,
            q_norm=None,
            k_norm=None,
            eps=0.0,
            **angles,
        ),
    ]
    for append in appended:
        with pytest.raises(ValueError, match="in the same memory"):
            append()
    # In place: element by element, row by row, head by head.
    executor.append_add_activated(a, a, a, "silu")
    executor.append_gate(a, a, a, "silu")
    executor.append_scale(a, a, 2.0)
    executor.append_soft_cap(a, a, 2.0)
    executor.append_rms_norm(a, a, norm, 0.0)
    executor.append_layer_norm(a, a, norm, norm, 0.0)
    executor.append_head_norm(a, a, 16, norm, 0.0)
    executor.append_rope(x=a, out=a, head_dim=16, **angles)
    executor.append_clamp(a, a, 2.0)
    executor.append_add_positions(x=a, out=a, **positions)
    executor.append_scale_by_position(x=a, out=a, **factors)
    assert executor.op_names == [
        *("AddActivated", "Gate", "Scale", "SoftCap"),
        *("RmsNorm", "LayerNorm", "HeadNorm", "Rope"),
        *("Clamp", "AddPositions", "ScaleByPosition"),
    ]


def test_gathered_columns_are_those_of_the_input(executor: Any) -> None:
    a = executor.add_buffer(0, "float32", 16, 64, "T")
    rounded = executor.add_buffer(1024, "bfloat16", 16, 64, "T")
    narrow = executor.add_buffer(2048, "float32", 15, 64, "T")
    selected = executor.add_buffer(3072, "float32", 16, 64, "S")
    order = executor.add_constant(as_bytes(np.arange(16, dtype=np.int32)))
    short = executor.add_constant(as_bytes(np.arange(15, dtype=np.int32)))
    out = executor.add_buffer(4096, "float32", 16, 64, "T")
    for to, by in ((rounded, order), (narrow, order), (selected, order), (out, short)):
        with pytest.raises(ValueError, match=r"columns|type|order"):
            executor.append_gather_columns(a, [to], [by])
    for outs, orders in (([], []), ([out], []), ([out, out], [order, order])):
        with pytest.raises(ValueError, match=r"order each|same memory"):
            executor.append_gather_columns(a, outs, orders)
    executor.append_gather_columns(a, [out], [order])
    assert executor.op_names == ["GatherColumns"]


def test_columns_are_gathered_by_experts_that_were_chosen(executor: Any) -> None:
    a = executor.add_buffer(0, "float32", 16, 64, "T")
    ids = executor.add_buffer(1024, "int32", 2, 64, "T")
    shares = executor.add_buffer(2048, "float32", 2, 64, "T")
    out = executor.add_buffer(3072, "float32", 16, 64, "2T")
    other = executor.add_buffer(5120, "float32", 16, 64, "3T")
    orders = executor.add_constant(as_bytes(np.zeros((16, 16), np.int32)))
    short = executor.add_constant(as_bytes(np.zeros((15, 16), np.int32)))
    with pytest.raises(ValueError, match="chosen before"):
        executor.append_gather_columns(a, [out], [orders], ids)
    append_route(executor, a, ids, shares, Routing())
    for x, to, by in ((a, other, orders), (a, a, orders), (other, out, orders), (a, out, short)):
        with pytest.raises(ValueError, match=r"columns|experts have|order"):
            executor.append_gather_columns(x, [to], [by], ids)
    executor.append_gather_columns(a, [out], [orders], ids)
    assert executor.op_names == ["Route", "GatherColumns"]


def test_tables_by_position_have_all_positions(executor: Any) -> None:
    """An executor here has 64 positions."""
    x = Buffers(executor).add()
    table = executor.add_constant(as_bytes(np.ones((65, COLUMNS), np.float32)))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"offset": 2}, "has not all of 64 positions"),
        ({"offset": -1}, "has not all"),
        ({"rows": 63}, "has not all"),
        ({"rows": HUGE, "offset": HUGE}, "has not all"),
        ({"rows": HUGE}, "table of positions"),
        ({"rows": 64, "offset": 0}, "bytes where"),
        ({"elem": "int32"}, "float type"),
    ]
    good = {"table": table, "elem": "float32", "rows": 65, "offset": 1}
    for changes, reported in bad:
        with pytest.raises(ValueError, match=reported):
            executor.append_add_positions(x=x, out=x, **(good | changes))
    executor.append_add_positions(x=x, out=x, **good)
    factors = executor.add_constant(as_bytes(np.ones(9, np.float32)))
    for period, offset in ((8, 0), (9, 8), (0, 0), (-1, 0), (8, -1), (8, HUGE), (HUGE, 0)):
        with pytest.raises(ValueError, match="factors of positions"):
            executor.append_scale_by_position(
                x=x, out=x, factors=factors, period=period, offset=offset
            )
    executor.append_scale_by_position(x=x, out=x, factors=factors, period=8, offset=1)


@pytest.mark.parametrize("limit", [-1.0, np.nan])
def test_a_limit_of_values_is_not_negative(executor: Any, limit: float) -> None:
    x = Buffers(executor).add()
    with pytest.raises(ValueError, match="limit"):
        executor.append_clamp(x, x, limit)


def test_an_rms_norm_of_heads_has_no_bias(executor: Any) -> None:
    x = Buffers(executor).add()
    bias = executor.add_constant(as_bytes(np.ones(8, np.float32)))
    with pytest.raises(ValueError, match="no bias"):
        executor.append_head_norm(x, x, 8, None, 0.0, bias=bias)
    for each_head, layer in ((True, True), (True, False)):
        with pytest.raises(ValueError, match="head norm's weight"):
            executor.append_head_norm(x, x, 8, bias, 0.0, layer=layer, each_head=each_head)


def test_columns_that_are_selected_or_given_lie_in_their_rows(executor: Any) -> None:
    buffers = Buffers(executor)
    x, out = buffers.add(), buffers.add(2 * COLUMNS, rows="S")
    for first in (HUGE, HUGE - 31, -1, 33):
        with pytest.raises(ValueError, match="selected"):
            executor.append_select_rows(x, out, first)
    for first in (HUGE, HUGE - 31, -1, 2**31 - 1):
        with pytest.raises(ValueError, match="no column"):
            executor.append_features(x, first)
    executor.append_select_rows(x, out, COLUMNS)


def test_a_table_of_embeddings_is_of_floats(executor: Any) -> None:
    out = Buffers(executor).add()
    table = executor.reserve_constant(8 * COLUMNS * 4)
    with pytest.raises(ValueError, match="float type"):
        executor.append_embed(table, "int32", out, 8)
    with pytest.raises(ValueError, match="a row for each of 8 tokens, and not 7"):
        executor.append_embed(table, "float32", out, 7)
    with pytest.raises(ValueError, match="an embedding table has"):
        executor.append_embed(table, "float32", out, 9)
    executor.append_embed(table, "float32", out, 8)


def test_a_matrix_in_two_products_has_the_bias_of_each(executor: Any) -> None:
    buffers = Buffers(executor)
    x, biased, plain = buffers.add(), buffers.add(), buffers.add()
    matrix = executor.add_matrix("float32", COLUMNS, COLUMNS, False)
    bias = executor.add_constant(as_bytes(np.full(COLUMNS, 7, np.float32)))
    features = executor.add_constant(as_bytes(np.zeros((8, COLUMNS), np.float32)))
    executor.append_embed(features, "float32", x, 8)
    executor.append_linear(matrix, bias, x, biased, "none")
    executor.append_linear(matrix, None, x, plain, "none")
    one, none = np.zeros(1, np.int32), np.empty(0, np.int32)
    pairs = np.empty((0, 2), np.int32)
    bounds = np.array([0, 1], np.int32)
    executor.run(one, one, bounds, one + 1, (), none, none, pairs, none, pairs, None)
    assert (executor.view(biased).view(np.float32)[0] == 7).all()
    assert (executor.view(plain).view(np.float32)[0] == 0).all()


def test_ops_of_elements_agree_in_shape(executor: Any) -> None:
    buffers = Buffers(executor)
    x, wide, selected = buffers.add(), buffers.add(2 * COLUMNS), buffers.add(rows="S")
    rounded = buffers.add(elem="bfloat16")
    one, two = (executor.add_constant(as_bytes(np.ones(n, np.float32))) for n in (1, 2))
    appended: list[Callable[[int, int], Any]] = [
        lambda a, b: executor.append_gate(a, x, b, "silu"),
        lambda a, b: executor.append_scale(a, b, 2.0),
        lambda a, b: executor.append_scale_by(a, b, one),
        lambda a, b: executor.append_soft_cap(a, b, 2.0),
        lambda a, b: executor.append_xielu(x=a, out=b, p=one, n=one, beta=one, eps=one),
        lambda a, b: executor.append_add_activated(x, a, b, "silu"),
    ]
    for append in appended:
        for a, b in ((x, wide), (wide, x), (x, selected), (selected, x)):
            with pytest.raises(ValueError, match="differ in shape"):
                append(a, b)
        with pytest.raises(ValueError, match="element type"):
            append(rounded, x)
    for cap in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="soft cap"):
            executor.append_soft_cap(x, x, cap)
    for factor in (np.nan, np.inf):
        with pytest.raises(ValueError, match="factor"):
            executor.append_scale(x, x, factor)
    with pytest.raises(ValueError, match="a factor"):
        executor.append_scale_by(x, x, two)
    numbers = dict.fromkeys(("p", "n", "beta", "eps"), one)
    for name in numbers:
        with pytest.raises(ValueError, match="a number of xIELU"):
            executor.append_xielu(x=x, out=x, **{**numbers, name: two})
    with pytest.raises(ValueError, match="activation"):
        executor.append_gate(x, x, x, "none")


def test_columns_lie_in_their_rows(executor: Any) -> None:
    buffers = Buffers(executor)
    x, wide, selected = buffers.add(), buffers.add(2 * COLUMNS), buffers.add(rows="S")
    for first in (HUGE, HUGE - 31, -1, COLUMNS + 1):
        with pytest.raises(ValueError, match="does not lie in the rows"):
            executor.append_columns(wide, x, first)
    for a, b in ((x, wide), (wide, selected)):
        with pytest.raises(ValueError, match="does not lie in the rows"):
            executor.append_columns(a, b, 0)
    with pytest.raises(ValueError, match="element type"):
        executor.append_columns(wide, buffers.add(elem="bfloat16"), 0)
    executor.append_columns(wide, x, COLUMNS)


def test_norms_agree_in_shape(executor: Any) -> None:
    buffers = Buffers(executor)
    x, wide, selected = buffers.add(), buffers.add(2 * COLUMNS), buffers.add(rows="S")
    weight = executor.add_constant(as_bytes(np.ones(COLUMNS, np.float32)))
    short = executor.add_constant(as_bytes(np.ones(COLUMNS - 1, np.float32)))
    for out in (wide, selected):
        with pytest.raises(ValueError, match="differ in shape"):
            executor.append_rms_norm(x, out, weight, 0.0)
        with pytest.raises(ValueError, match="differ in shape"):
            executor.append_layer_norm(x, out, weight, None, 0.0)
    with pytest.raises(ValueError, match="weight"):
        executor.append_rms_norm(x, x, short, 0.0)
    with pytest.raises(ValueError, match="bias"):
        executor.append_layer_norm(x, x, weight, short, 0.0)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"kv_groups": 0}, "groups and a place"),
        ({"kv_parts": 0}, "groups and a place"),
        ({"kv_layers": [(1, 8, 1, 0, 0, 0, 0)]}, "of no group"),
        ({"kv_layers": [(1, 8, 0, 1, 0, 0, 0)]}, "no part"),
        ({"kv_layers": [(1, 8, 0, -1, 0, 0, 0)]}, "no part"),
        ({"kv_layers": [(1, 8, 0, 0, 64, 0, 0)]}, "outside its page"),
        ({"kv_layers": [(2, 8, 0, 0, 0, 0, 0)]}, "outside its page"),
        ({"kv_layers": [(1, 8, 0, 0, 32, 0, 0)], "kv_part_bytes": 2 * BLOCK_BYTES}, "cache line"),
        ({"kv_part_bytes": 2**62}, "KV cache"),
        ({"kv_part_bytes": 2**64 - 64}, "KV cache"),
    ],
)
def test_layers_of_a_cache_lie_in_its_pages(
    one_module: Any, changes: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ValueError, match=reported):
        make(one_module, **(CACHE | changes))
