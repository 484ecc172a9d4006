"""Native attention over a cache of latents: near exact sums, and each row bitwise its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.attention_parts import Part, sequence
from support.draft_trees import Tree, line_of, make_tree, parent_lists
from support.native_attention import Scores, attend
from support.native_cache import F32, LATENT_ELEMENTS, Cache, Shape
from support.native_executor import Buffers, make
from support.needs import needs_native

from penstock.backends.cpu import native
from penstock.cache.geometry import BLOCK_SIZE

VARIANTS = native.runnable()

pytestmark = [needs_native, pytest.mark.thinned(5)]


def latent(
    heads: int, value_dim: int, rope_dim: int, element: str = "bfloat16", window: int = 0
) -> Shape:
    return Shape(heads, 1, value_dim + rope_dim, element, window, value_dim)


def check(shape: Shape, part: Part, actual: F32) -> None:
    """Errors are of the order of the roundings of weights, and not of more."""
    s = part.sequence
    q = shape.rounded(s.q) if shape.element == "bfloat16" else s.q
    q = q[part.start : part.end].astype(np.float64)
    k = shape.rounded(s.k)[: part.end, 0].astype(np.float64)
    scores = np.einsum("qhd,kd->hqk", q, k) * shape.head_dim**-0.5
    distance = np.arange(part.start, part.end)[:, None] - np.arange(part.end)
    seen = (distance >= 0) & ((distance < shape.window) if shape.window else True)
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    values = k[:, : shape.value_dim]
    expected = np.einsum("hqk,kd->qhd", p, values)
    size = np.einsum("hqk,kd->qhd", p, np.abs(values))
    relative = 2.0**-8 * 1.05 if shape.element == "bfloat16" else 2e-5
    error = np.abs(actual - expected)
    assert np.all(error <= relative * size + 1e-6)
    assert error.mean() <= relative / 4 * size.mean() + 1e-6  # roundings do not all agree


def ragged(shape: Shape, seed: int) -> list[Part]:
    """Prefill chunks and decodes of lengths around the sizes of blocks, splits and tiles."""
    ends = [(0, 1), (0, 33), (31, 32), (32, 33), (200, 257), (255, 256), (256, 257), (599, 600)]
    return [Part(sequence(shape, end, seed + i), start, end) for i, (start, end) in enumerate(ends)]


def same(a: F32, b: F32) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize(
    ("heads", "value_dim", "rope_dim"),
    [(1, 11, 4), (3, 40, 8), (5, 33, 2), (17, 64, 0), (33, 96, 32), (16, 512, 64), (2, 1, 1)],
)
def test_sizes(module: Any, heads: int, value_dim: int, rope_dim: int, element: str) -> None:
    shape = latent(heads, value_dim, rope_dim, element)
    parts = ragged(shape, value_dim)
    for part, rows in zip(parts, attend(module, shape, parts, threads=2), strict=True):
        check(shape, part, rows)


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize("window", [1, 7, 32, 57, 256, 300])
def test_windows(module: Any, window: int, element: str) -> None:
    shape = latent(5, 24, 8, element, window)
    parts = ragged(shape, window)
    for part, rows in zip(parts, attend(module, shape, parts, threads=2), strict=True):
        check(shape, part, rows)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize("window", [0, 20, 300])
@pytest.mark.parametrize("chunk", [1, 7, 33])
def test_chunking_changes_nothing(module: Any, chunk: int, window: int, element: str) -> None:
    shape = latent(6, 40, 8, element, window)
    n = 310 if chunk > 1 else 280
    s = sequence(shape, n, chunk)
    (whole,) = attend(module, shape, [Part(s, 0, n)])
    starts = range(250, n) if chunk == 1 else range(0, n, chunk)
    for start in starts:
        end = min(start + chunk, n)
        (rows,) = attend(module, shape, [Part(s, start, end)], seed=start)
        same(rows, whole[start:end])


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize("heads", [3, 16, 40])
def test_company_changes_nothing(module: Any, heads: int, element: str) -> None:
    shape = latent(heads, 50, 6, element)
    parts = ragged(shape, 77)
    alone = [attend(module, shape, [part], seed=i)[0] for i, part in enumerate(parts)]
    order = np.random.default_rng(3).permutation(len(parts))
    together = attend(module, shape, [parts[i] for i in order], threads=2, seed=9)
    for i, rows in zip(order, together, strict=True):
        same(rows, alone[i])


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(module: Any, threads: int, element: str) -> None:
    """Long contexts: with more threads, tiles are cut, and partials merged."""
    shape = latent(5, 40, 8, element)
    s, t = sequence(shape, 1500, 1), sequence(shape, 900, 2)
    for parts in ([Part(s, 1499, 1500)], [Part(s, 0, 5), Part(t, 850, 900)]):
        one = attend(module, shape, parts, threads=1)
        many = attend(module, shape, parts, threads=threads, layers=3)
        for part, a, b in zip(parts, one, many, strict=True):
            check(shape, part, a)
            same(a, b)


@pytest.mark.parametrize("bf16_activations", [False, True])
def test_activation_elements(module: Any, bf16_activations: bool) -> None:
    shape = latent(5, 40, 8)
    parts = ragged(shape, 5)
    wide = attend(module, shape, parts)
    for a, b in zip(
        wide, attend(module, shape, parts, bf16_activations=bf16_activations), strict=True
    ):
        np.testing.assert_array_equal(b, shape.rounded(a) if bf16_activations else a)


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
def test_caps_and_sinks(module: Any, element: str) -> None:
    """Those of a cache of values whose keys and values are the same, but for rounding: in int8 the
    keys of heads are turned."""
    shape = latent(4, 48, 0, element)
    apart = replace(shape, value_dim=0)
    s = sequence(shape, 300, 6)
    part = Part(replace(s, v=s.k), 270, 300)
    scores = Scores(softcap=3.0, sinks=np.linspace(-1, 3, 4, dtype=np.float32))
    (got,) = attend(module, shape, [part], scores=scores)
    (expected,) = attend(module, apart, [part], scores=scores)
    atol = 4e-3 if element == "int8" else 2e-3
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("bad_value", [np.nan, np.inf])
@pytest.mark.parametrize("element", ["float32", "int8"])
def test_own_bad_latents_are_not_hidden(module: Any, bad_value: float, element: str) -> None:
    """One that is not finite reaches the outputs that see it, and no earlier query's."""
    shape = latent(2, 24, 8, element)
    s = sequence(shape, 300, 4)
    bad = replace(s, k=s.k.copy())
    bad.k[290] = bad_value
    (clean,) = attend(module, shape, [Part(s, 0, 290)])
    (rows,) = attend(module, shape, [Part(bad, 0, 290)])
    same(rows, clean)
    (rows,) = attend(module, shape, [Part(bad, 290, 300)])
    assert np.isnan(rows).all()


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@given(
    start=st.sampled_from([0, 17, 31, 32, 225, 255, 256, 257, 290, 513]),
    parents=parent_lists(),
    heads=st.sampled_from([1, 4, 7, 40]),
    sizes=st.sampled_from([(11, 4), (40, 8), (33, 2)]),
    window=st.sampled_from([0, 0, 1, 9, 40, 260]),
    threads=st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_a_row_of_a_tree_is_a_decoded_token(
    element: str,
    start: int,
    parents: list[int],
    heads: int,
    sizes: tuple[int, int],
    window: int,
    threads: int,
) -> None:
    shape = latent(heads, *sizes, element, window)
    tree: Tree = make_tree(shape, start, parents, seed=len(parents))
    for isa in VARIANTS:
        module = native.load(isa)
        (rows,) = attend(module, shape, [tree], threads, seed=1)
        for row in {0, len(rows) // 2, len(rows) - 1, int(np.argmax(tree.parents))}:
            (alone,) = attend(module, shape, [line_of(tree, row)], seed=row)
            same(rows[row], alone[0])


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize(("value_dim", "rope_dim"), [(11, 4), (40, 8)])
def test_moves_are_made_one_after_another(
    module: Any, value_dim: int, rope_dim: int, element: str
) -> None:
    shape = latent(4, value_dim, rope_dim, element)
    s = sequence(shape, 3 * BLOCK_SIZE, 2)
    moves = [(5, 70), (70, 2), (5, 5), (95, 5), (2, 64)]
    before, after = Cache(shape, 3), Cache(shape, 3)
    held = list(range(3 * BLOCK_SIZE))
    for source, target in moves:
        held[target] = held[source]
    for slot, token in enumerate(held):
        before.write(slot, s.k[slot], s.v[slot])
        after.write(slot, s.k[token], s.v[token])
    module.move_slots(
        before.bytes,
        element,
        kv_heads=1,
        head_dim=shape.head_dim,
        moves=np.array(moves, np.int32),
        value_dim=value_dim,
    )
    np.testing.assert_array_equal(before.bytes, after.bytes)


def step_arrays(tokens: int, slots: NDArray[np.int32], order: list[int]) -> list[Any]:
    """A step of one sequence of ``tokens`` in these blocks, which begins with it."""
    none, pairs = np.empty(0, np.int32), np.empty((0, 2), np.int32)
    tables = (slots, np.array([0, len(order)], np.int32), np.array(order, np.int32))
    return [
        np.zeros(tokens, np.int32),
        np.arange(tokens, dtype=np.int32),
        np.array([0, tokens], np.int32),
        np.array([tokens], np.int32),
        [tables],
        none,
        none,
        pairs,
        none,
        pairs,
    ]


@pytest.mark.parametrize("element", LATENT_ELEMENTS)
@pytest.mark.parametrize(("value_dim", "rope_dim"), [(11, 4), (40, 8), (512, 64), (600, 2)])
def test_latents_are_written(module: Any, value_dim: int, rope_dim: int, element: str) -> None:
    """What NumPy puts there, and nothing else."""
    shape, tokens, order = latent(1, value_dim, rope_dim, element), 37, [1, 0]
    keys = np.random.default_rng(2).standard_normal((tokens, shape.head_dim), dtype=np.float32)
    keys[5, :value_dim] = 0.0
    places = np.arange(tokens, dtype=np.int32)
    slots = np.array(order, np.int32)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
    expected = Cache(shape, len(order))
    expected.bytes[:] = 0  # as the system gives memory
    expected.write(slots, keys, keys)
    for threads in (1, 3):
        executor = make(
            module,
            threads=threads,
            max_tokens=tokens,
            arena_bytes=tokens * shape.head_dim * 4,
            kv_elem=element,
            kv_groups=1,
            kv_parts=1,
            kv_part_bytes=len(Cache(shape, 1).bytes),
            kv_layers=[(1, shape.head_dim, 0, 0, 0, value_dim, 0)],
        )
        k = executor.add_buffer(0, "float32", shape.head_dim, shape.head_dim * 4, "T")
        executor.append_features(k, 0)
        executor.append_kv_write(layer=0, k=k, v=None)
        executor.run(*step_arrays(tokens, slots, order), keys)
        np.testing.assert_array_equal(executor.kv_copy(0), expected.bytes)
        executor.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kv_layers": [(2, 8, 0, 0, 0, 4, 0)]}, "one head of up to 2048 components, not 2 of 8"),
        ({"kv_layers": [(1, 8, 0, 0, 0, 9, 0)]}, "with values of 9"),
        ({"kv_layers": [(1, 2049, 0, 0, 0, 4, 0)], "kv_part_bytes": 1 << 20}, "not 1 of 2049"),
        ({"kv_layers": [(1, 8, 0, 0, 0, -1, 0)]}, "with values of -1"),
    ],
)
def test_caches_that_cannot_be_are_refused(module: Any, changes: dict[str, Any], why: str) -> None:
    cache = {"kv_groups": 1, "kv_parts": 1, "kv_part_bytes": 4096}
    with pytest.raises(ValueError, match=why):
        make(module, **(cache | changes))


def test_ops_that_do_not_fit_a_cache_of_latents_are_refused(module: Any) -> None:
    cache = {"kv_groups": 1, "kv_parts": 1, "kv_part_bytes": 32 * 8 * 4}
    executor = make(module, **cache, kv_layers=[(1, 8, 0, 0, 0, 6, 0)])
    buffers = Buffers(executor)
    wide, narrow, values = buffers.add(8), buffers.add(6), buffers.add(8)
    attention = {"layer": 0, "heads": 1, "scale": 1.0, "window": 0}
    attention |= {"softcap": None, "slopes": None, "sinks": None}
    with pytest.raises(ValueError, match="values are written where the layer has them"):
        executor.append_kv_write(layer=0, k=wide, v=values)
    with pytest.raises(ValueError, match="keys and values do not fit"):
        executor.append_kv_write(layer=0, k=narrow, v=None)
    with pytest.raises(ValueError, match="queries and output of attention do not fit"):
        executor.append_attention(q=wide, out=values, **attention)
    executor.append_attention(q=wide, out=narrow, **attention)
    executor.close()
    executor = make(
        module, **cache | {"kv_part_bytes": 2 * 32 * 8 * 4, "kv_layers": [(1, 8, 0, 0, 0, 0, 0)]}
    )
    k = Buffers(executor).add(8)
    with pytest.raises(ValueError, match="values are written where the layer has them"):
        executor.append_kv_write(layer=0, k=k, v=None)
    executor.close()
