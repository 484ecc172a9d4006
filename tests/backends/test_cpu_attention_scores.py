"""Scores that are capped, that fall with distance, and that share their softmax with a sink."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.attention_parts import Part, sequence
from support.draft_trees import line_of, make_tree
from support.native_attention import PLAIN, Scores, attend
from support.native_cache import CODED, ELEMENTS, F32, IN_BFLOAT16, Shape, fitted, rounded

pytestmark = pytest.mark.thinned(5)


def make_scores(heads: int, softcap: bool, slopes: bool, sinks: bool) -> Scores:
    rng = np.random.default_rng(heads)
    return Scores(
        softcap=3.0 if softcap else 0.0,
        slopes=2.0 ** -(1 + np.arange(heads, dtype=np.float32)) if slopes else None,
        sinks=rng.uniform(-1, 4, heads).astype(np.float32) if sinks else None,
    )


EVERY = [options for options in itertools.product([False, True], repeat=3) if any(options)]


def oracle(
    shape: Shape, part: Part, scores: Scores
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Exact attention on the rounded operands, and ``sum(p |v|)``, the scale of its errors."""
    s = part.sequence
    q = rounded(s.q, "bfloat16") if shape.element in IN_BFLOAT16 else s.q
    q = q[part.start : part.end].astype(np.float64)
    k = np.repeat(shape.rounded(s.k)[: part.end], shape.group, axis=1).astype(np.float64)
    v = np.repeat(shape.rounded(s.v, values=True)[: part.end], shape.group, axis=1).astype(
        np.float64
    )
    x = np.einsum("qhd,khd->hqk", q, k) * shape.head_dim**-0.5
    if scores.softcap:
        x = scores.softcap * np.tanh(x / scores.softcap)
    distance = np.arange(part.end) - np.arange(part.start, part.end)[:, None]
    if scores.slopes is not None:
        x = x + scores.slopes.astype(np.float64)[:, None, None] * distance
    rows, columns = np.arange(part.start, part.end)[:, None], np.arange(part.end)
    seen = (columns <= rows) & (columns >= shape.seen_from(rows))
    weights = np.exp(np.where(seen, x, -np.inf))
    total = weights.sum(-1, keepdims=True)
    if scores.sinks is not None:
        total = total + np.exp(scores.sinks.astype(np.float64))[:, None, None]
    p = weights / total
    return np.einsum("hqk,khd->qhd", p, v), np.einsum("hqk,khd->qhd", p, np.abs(v))


def assert_close(shape: Shape, part: Part, scores: Scores, actual: F32) -> None:
    expected, size = oracle(shape, part, scores)
    # As in test_cpu_attention: weights are rounded to bfloat16, or to 16 bits of a row's largest.
    relative = 2.0**-8 * 1.05 if shape.element in IN_BFLOAT16 else 2e-5
    if shape.element in CODED:
        relative, size = 4e-4, size.mean(-1, keepdims=True)
    error = np.abs(actual - expected)
    assert np.all(error <= relative * size + 1e-6)
    assert error.mean() <= relative / 4 * size.mean() + 1e-6


def ragged(shape: Shape, seed: int) -> list[Part]:
    """Prefill chunks and decodes of lengths around the sizes of blocks, splits and tiles."""
    ends = [(0, 1), (0, 33), (31, 32), (200, 257), (255, 256), (256, 257), (599, 600)]
    return [Part(sequence(shape, end, seed + i), start, end) for i, (start, end) in enumerate(ends)]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("options", EVERY, ids=str)
@pytest.mark.parametrize(
    ("heads", "head_dim", "window"), [((6, 2), 64, 0), ((4, 4), 50, 57), ((7, 1), 16, 300)]
)
def test_scores_as_the_op_defines_them(
    module: Any,
    heads: tuple[int, int],
    head_dim: int,
    window: int,
    options: tuple[bool, bool, bool],
    element: str,
) -> None:
    shape = Shape(*heads, fitted(head_dim, element), element, window)
    scores = make_scores(heads[0], *options)
    parts = ragged(shape, head_dim)
    plain = attend(module, shape, parts)
    for part, rows, without in zip(
        parts, attend(module, shape, parts, threads=2, scores=scores), plain, strict=True
    ):
        assert_close(shape, part, scores, rows)
        assert part.end == 1 or np.abs(rows - without).max() > 1e-3


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("window", [0, 700])
def test_threads_and_chunks_change_nothing(module: Any, window: int, element: str) -> None:
    """Several threads cut tiles, and the last one merges their splits: a sink is
    joined once all the same."""
    shape = Shape(5, 1, 32, element, window)
    scores = make_scores(5, True, True, True)
    s, t = sequence(shape, 1500, 1), sequence(shape, 900, 2)
    (whole,) = attend(module, shape, [Part(s, 1430, 1500)], scores=scores)
    for parts in ([Part(s, 1499, 1500)], [Part(s, 1490, 1500), Part(t, 899, 900)]):
        one = attend(module, shape, parts, threads=1, scores=scores)
        for threads in (2, 3):
            many = attend(module, shape, parts, threads=threads, layers=3, scores=scores)
            for part, a, b in zip(parts, one, many, strict=True):
                assert_close(shape, part, scores, a)
                np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(one[0], whole[len(whole) - len(one[0]) :])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("start", [17, 225, 290])
@pytest.mark.parametrize("window", [0, 40])
def test_a_row_of_a_tree_is_a_decoded_token(
    module: Any, window: int, start: int, element: str
) -> None:
    """Distances are of positions, whatever slots a path's tokens lie in."""
    shape = Shape(6, 2, 32, element, window)
    scores = make_scores(6, True, True, True)
    parents = [-1, 0, 1, 1, 2, 2, 0, 6, 7, *range(8, 40), 3, 3]
    tree = make_tree(shape, start, parents, 3)
    (rows,) = attend(module, shape, [tree], threads=2, scores=scores)
    for row in (0, 3, 5, 8, 30, len(parents) - 1):
        (alone,) = attend(module, shape, [line_of(tree, row)], seed=row, scores=scores)
        np.testing.assert_array_equal(rows[row].view(np.uint32), alone[0].view(np.uint32))


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_sink_that_is_nothing_changes_no_bit(module: Any, element: str) -> None:
    shape = Shape(6, 2, 32, element)
    parts = ragged(shape, 3)
    nothing = Scores(sinks=np.full(6, -np.inf, np.float32))
    for a, b in zip(
        attend(module, shape, parts, scores=PLAIN),
        attend(module, shape, parts, scores=nothing),
        strict=True,
    ):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_sink_may_take_all_or_be_far_below(module: Any, element: str) -> None:
    """Neither overflows: weights are taken from the larger of the two."""
    shape = Shape(4, 2, 32, element)
    part = Part(sequence(shape, 300, 5), 0, 300)
    for sink in (1e30, 200.0, -200.0):
        scores = Scores(sinks=np.full(4, sink, np.float32))
        (rows,) = attend(module, shape, [part], threads=2, scores=scores)
        if sink > 0:
            assert np.abs(rows).max() < 1e-30
        else:
            assert_close(shape, part, PLAIN, rows)


@pytest.mark.parametrize("name", ["slopes", "sinks"])
def test_there_is_one_for_each_head(module: Any, name: str) -> None:
    shape = Shape(4, 2, 32, "float32")
    part = Part(sequence(shape, 4, 0), 0, 4)
    with pytest.raises(ValueError, match="one for each head"):
        attend(module, shape, [part], scores=Scores(**{name: np.zeros(3, np.float32)}))
