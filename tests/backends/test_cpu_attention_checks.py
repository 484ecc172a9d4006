"""Attention, heads and cache writes that are appended: what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes
from support.native_executor import (
    BLOCK_BYTES,
    CACHE,
    Buffers,
    append_attention,
    make,
)

HUGE = 2**63 - 1


@pytest.mark.parametrize(("name", "reported"), [("scale", "scale"), ("softcap", "soft cap")])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_attention_has_a_positive_scale_and_soft_cap(
    one_module: Any, name: str, reported: str, value: float
) -> None:
    executor = make(one_module, **CACHE)
    buffers = Buffers(executor)
    q, out = buffers.add(8), buffers.add(8)
    with pytest.raises(ValueError, match=reported):
        append_attention(executor, q, out, **{name: value})
    append_attention(executor, q, out, **{name: 30.0})


@pytest.mark.parametrize("name", ["slopes", "sinks"])
def test_attention_has_a_slope_and_a_sink_for_each_head(one_module: Any, name: str) -> None:
    executor = make(one_module, **CACHE)
    buffers = Buffers(executor)
    q, out = buffers.add(16), buffers.add(16)
    for heads in (1, 3):
        constant = executor.add_constant(as_bytes(np.ones(heads, np.float32)))
        with pytest.raises(ValueError, match=name):
            append_attention(executor, q, out, heads=2, **{name: constant})
    constant = executor.add_constant(as_bytes(np.ones(2, np.float32)))
    append_attention(executor, q, out, heads=2, **{name: constant})


@pytest.mark.parametrize(
    ("head_dim", "match"), [(0, "components"), (513, "components"), (5, "whole")]
)
def test_heads_are_whole(executor: Any, head_dim: int, match: str) -> None:
    buffers = Buffers(executor)
    x, out = buffers.add(), buffers.add()
    weight = executor.add_constant(as_bytes(np.ones(max(head_dim, 1), np.float32)))
    empty = executor.add_constant(np.empty(0, np.uint8))
    with pytest.raises(ValueError, match=match):
        executor.append_head_norm(x, out, head_dim, weight, 0.0)
    with pytest.raises(ValueError, match=match):
        executor.append_rope(
            x=x, out=out, head_dim=head_dim, cos=empty, sin=empty, rope_dim=0, interleaved=False
        )


@pytest.mark.parametrize("rope_dim", [-2, 3, 10])
@pytest.mark.parametrize("interleaved", [False, True])
def test_an_even_part_of_a_head_is_rotated(executor: Any, rope_dim: int, interleaved: bool) -> None:
    buffers = Buffers(executor)
    x, out, selected = buffers.add(), buffers.add(), buffers.add(rows="S")
    table = executor.add_constant(as_bytes(np.ones((64, 4), np.float32)))
    options = {"head_dim": 8, "cos": table, "sin": table, "interleaved": interleaved}
    with pytest.raises(ValueError, match="even number within the head"):
        executor.append_rope(x=x, out=out, rope_dim=rope_dim, **options)
    with pytest.raises(ValueError, match="table"):
        executor.append_rope(x=x, out=out, rope_dim=6, **options)
    with pytest.raises(ValueError, match="same whole heads"):
        executor.append_rope(x=x, out=selected, rope_dim=8, **options)
    with pytest.raises(ValueError, match="token rows"):
        executor.append_rope(x=selected, out=selected, rope_dim=8, **options)
    executor.append_rope(x=x, out=out, rope_dim=8, **options)


def test_keys_and_values_are_those_of_the_layer(one_module: Any) -> None:
    executor = make(
        one_module,
        **(CACHE | {"kv_part_bytes": 2 * BLOCK_BYTES, "kv_layers": [(2, 8, 0, 0, 0, 0, 0)]}),
    )
    buffers = Buffers(executor)
    k, wide, rounded = buffers.add(16), buffers.add(32), buffers.add(16, "bfloat16")
    selected = buffers.add(16, rows="S")
    for keys, values in ((k, wide), (wide, k)):
        with pytest.raises(ValueError, match="fit the layer"):
            executor.append_kv_write(layer=0, k=keys, v=values)
    with pytest.raises(ValueError, match="element type"):
        executor.append_kv_write(layer=0, k=rounded, v=k)
    with pytest.raises(ValueError, match="token rows"):
        executor.append_kv_write(layer=0, k=k, v=selected)
    for layer in (-1, 1):
        with pytest.raises(ValueError, match="no such KV layer"):
            executor.append_kv_write(layer=layer, k=k, v=k)
    executor.append_kv_write(layer=0, k=k, v=k)
