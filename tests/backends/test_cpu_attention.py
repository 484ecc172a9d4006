"""Native attention against NumPy, and the promise that a row is bitwise its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_parts import Part, sequence
from support.native_attention import attend
from support.native_cache import (
    CODED,
    ELEMENTS,
    F32,
    IN_BFLOAT16,
    SCALED,
    Shape,
    fitted,
    rounded,
)
from support.needs import Need, lacking

from penstock.backends.cpu import native

pytestmark = pytest.mark.thinned(5)


def oracle(shape: Shape, part: Part) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Exact attention on the rounded operands, and ``sum(p |v|)``, the scale of its errors."""
    s = part.sequence
    q = rounded(s.q, "bfloat16") if shape.element in IN_BFLOAT16 else s.q
    q = q[part.start : part.end].astype(np.float64)
    k = np.repeat(shape.rounded(s.k)[: part.end], shape.group, axis=1).astype(np.float64)
    v = np.repeat(shape.rounded(s.v, values=True)[: part.end], shape.group, axis=1).astype(
        np.float64
    )
    scores = np.einsum("qhd,khd->hqk", q, k) * shape.head_dim**-0.5
    rows, columns = np.arange(part.start, part.end)[:, None], np.arange(part.end)
    seen = (columns <= rows) & (columns >= shape.seen_from(rows))
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", p, v), np.einsum("hqk,khd->qhd", p, np.abs(v))


def assert_close(shape: Shape, part: Part, actual: F32) -> None:
    expected, size = oracle(shape, part)
    # Weights are rounded to bfloat16 (half an ulp is at most 2**-8); otherwise float32 throughout.
    relative = 2.0**-8 * 1.05 if shape.element in IN_BFLOAT16 else 2e-5
    error = np.abs(actual - expected)
    if shape.element in CODED:
        # Weights and queries are rounded to 16 bits of their row's largest, not each to its own.
        relative, size = 4e-4, size.mean(-1, keepdims=True)
    assert np.all(error <= relative * size + 1e-6)
    assert error.mean() <= relative / 4 * size.mean() + 1e-6  # roundings do not all agree


def check(module: Any, shape: Shape, parts: list[Part], threads: int = 2) -> None:
    for part, rows in zip(parts, attend(module, shape, parts, threads), strict=True):
        assert_close(shape, part, rows)


def ragged(shape: Shape, seed: int) -> list[Part]:
    """Prefill chunks and decodes of lengths around the sizes of blocks, splits and tiles."""
    ends = [(0, 1), (0, 33), (31, 32), (32, 33), (200, 257), (255, 256), (256, 257), (599, 600)]
    return [Part(sequence(shape, end, seed + i), start, end) for i, (start, end) in enumerate(ends)]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("head_dim", [8, 50, 64, 80, 96, 128, 256, 320, 512])
def test_head_dims(module: Any, head_dim: int, element: str) -> None:
    shape = Shape(head_dim=fitted(head_dim, element), element=element)
    check(module, shape, ragged(shape, head_dim))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(3, 3), (4, 2), (6, 2), (4, 1), (7, 1), (8, 1), (40, 1)]
)
def test_groups(module: Any, heads: int, kv_heads: int, element: str) -> None:
    shape = Shape(heads, kv_heads, 16, element)
    check(module, shape, ragged(shape, heads))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("window", [1, 7, 32, 57, 100, 256, 300, 1000])
def test_windows(module: Any, window: int, element: str) -> None:
    shape = Shape(head_dim=32, element=element, window=window)
    check(module, shape, ragged(shape, window))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("chunk", [1, 7, 32, 57, 256, 300, 1000])
def test_chunks(module: Any, chunk: int, element: str) -> None:
    shape = Shape(head_dim=32, element=element, chunk=chunk)
    check(module, shape, ragged(shape, chunk))


@pytest.mark.parametrize("bf16_activations", [False, True])
def test_activation_elements(module: Any, bf16_activations: bool) -> None:
    """bfloat16 output is the float32 output, rounded; bfloat16 queries lose nothing."""
    shape = Shape()
    parts = ragged(shape, 5)
    wide = attend(module, shape, parts)
    narrow = attend(module, shape, parts, bf16_activations=bf16_activations)
    for a, b in zip(wide, narrow, strict=True):
        expected = shape.rounded(a) if bf16_activations else a
        np.testing.assert_array_equal(b, expected)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(
    ("window", "own"), [(0, 0), (20, 0), (33, 0), (300, 0), (0, 20), (0, 64), (0, 270)]
)
@pytest.mark.parametrize("chunk", [1, 7, 32, 33])
def test_chunking_changes_nothing(
    module: Any, chunk: int, window: int, own: int, element: str
) -> None:
    """Steps of parts of the prompt, whatever tokens see; ``own``: chunks of the model's."""
    shape = Shape(6, 2, 32, element, window, chunk=own)
    n = 310 if chunk > 1 else 290
    s = sequence(shape, n, chunk)
    (whole,) = attend(module, shape, [Part(s, 0, n)])
    starts = range(250, n) if chunk == 1 else range(0, n, chunk)
    for start in starts:
        end = min(start + chunk, n)
        (rows,) = attend(module, shape, [Part(s, start, end)], seed=start)
        np.testing.assert_array_equal(rows, whole[start:end])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("head_dim", [50, 80, 128])
def test_company_changes_nothing(module: Any, head_dim: int, element: str) -> None:
    shape = Shape(6, 2, fitted(head_dim, element), element)
    parts = ragged(shape, 77)
    alone = [attend(module, shape, [part], seed=i)[0] for i, part in enumerate(parts)]
    order = np.random.default_rng(3).permutation(len(parts))
    together = attend(module, shape, [parts[i] for i in order], threads=2, seed=9)
    for i, rows in zip(order, together, strict=True):
        np.testing.assert_array_equal(rows, alone[i])


@pytest.mark.thinned(7)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("window", [0, 700])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(module: Any, threads: int, window: int, element: str) -> None:
    """One KV head and long contexts: with more threads, tiles are cut, and partials merged."""
    shape = Shape(5, 1, 32, element, window)
    s = sequence(shape, 1500, 1)
    t = sequence(shape, 900, 2)
    for parts in (
        [Part(s, 1499, 1500)],
        [Part(s, 1490, 1500), Part(t, 899, 900)],
        [Part(s, 0, 5), Part(t, 700, 900)],
    ):
        one = attend(module, shape, parts, threads=1)
        many = attend(module, shape, parts, threads=threads, layers=3)
        for part, a, b in zip(parts, one, many, strict=True):
            assert_close(shape, part, a)
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("element", ["float32", *SCALED])
@pytest.mark.parametrize("bad_value", [np.nan, np.inf])
def test_own_bad_keys_are_not_hidden(module: Any, bad_value: float, element: str) -> None:
    """A key that is not finite reaches the outputs that see it, and no earlier query's."""
    shape = Shape(2, 1, 32, element)
    s = sequence(shape, 300, 4)
    bad = replace(s, k=s.k.copy())
    bad.k[290] = bad_value
    (clean,) = attend(module, shape, [Part(s, 0, 300)])
    (rows,) = attend(module, shape, [Part(bad, 0, 300)])
    np.testing.assert_array_equal(rows[:290], clean[:290])
    assert np.isnan(rows[290:]).all()


@pytest.mark.parametrize("bad_value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["q", "v"])
@pytest.mark.parametrize("element", SCALED)
def test_own_bad_queries_and_values_of_a_cache_of_codes(
    module: Any, element: str, where: str, bad_value: float
) -> None:
    """One value that is not finite spoils its token's head: its row of q, or whoever sees it."""
    shape = Shape(2, 1, 32, element)
    s = sequence(shape, 300, 4)
    bad = replace(s, **{where: getattr(s, where).copy()})
    getattr(bad, where)[290, 0, 3] = bad_value
    (clean,) = attend(module, shape, [Part(s, 0, 300)])
    (rows,) = attend(module, shape, [Part(bad, 0, 300)])
    np.testing.assert_array_equal(rows[:290], clean[:290])
    if where == "v":
        assert np.isnan(rows[290:]).all()
    else:
        assert np.isnan(rows[290, 0]).all()
        np.testing.assert_array_equal(rows[290, 1], clean[290, 1])
        np.testing.assert_array_equal(rows[291:], clean[291:])


@pytest.mark.parametrize(
    ("where", "size"),
    [*itertools.product("qkv", [0.0, 1e-44, 1e-39, 1e-32]), ("q", 50.0), ("k", 50.0), ("v", 1e30)],
)
def test_scales_of_an_int8_cache_at_the_ends_of_their_range(
    module: Any, size: float, where: str
) -> None:
    """Zeros weigh evenly or give zeros; what vanishes does so quietly, and nothing overflows."""
    shape = Shape(2, 1, 32, "int8")
    s = sequence(shape, 70, 5)
    part = Part(replace(s, **{where: getattr(s, where) * np.float32(size)}), 0, 70)
    (rows,) = attend(module, shape, [part])
    expected, scale = oracle(shape, part)
    # Scores 50 times as large have 50 times the error, and the largest takes nearly all the weight.
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-2 * scale.mean() + 1e-30)


@pytest.mark.slow  # an installation for this machine alone has one of the two
def test_dots_of_bytes_are_the_same_with_and_without_tiles() -> None:
    """Sums of integers are exact: rounding is where both variants do it."""
    if not {"amx", "avx512"} <= set(native.runnable()):
        lacking(Need.INSTRUCTIONS, "AMX beside AVX-512")
    shape = Shape(4, 2, 48, "int8")
    parts = ragged(shape, 8)
    tiles, vectors = (attend(native.load(isa), shape, parts) for isa in ("amx", "avx512"))
    for a, b in zip(tiles, vectors, strict=True):
        np.testing.assert_array_equal(a, b)


def test_refuses_impossible_heads(module: Any) -> None:
    shape = Shape(4, 3, 32, "float32")
    s = sequence(shape, 4, 0)
    with pytest.raises(ValueError, match="4 query heads are not a multiple of 3"):
        attend(module, shape, [Part(s, 0, 4)])
