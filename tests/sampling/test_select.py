"""Shortcuts against definitions: top-k, top-p, the draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sampling.draws import draw64
from penstock.sampling.select import ONE, draw_token, pick, token_weights, top_ids, top_p_keep

SIZES = [1, 2, 7, 63, 64, 65, 511, 1024, 1300, 5000]


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    made = []
    for size in SIZES:
        normal = rng.standard_normal(size).astype(np.float32)
        made += [
            normal,
            normal * 6,
            np.round(normal * 2),  # many ties
            np.zeros(size, np.float32),
            np.where(rng.random(size) < 0.5, -np.inf, normal).astype(np.float32),
        ]
        made[-1][0] = 1.0  # never all -inf
    return made


def defined_choice(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, bits: int
) -> int:
    """The definition, over a full sort and with Python integers."""
    size = len(logits)
    inverse = np.float32(1.0 / max(temperature, float(np.finfo(np.float32).tiny)))
    with np.errstate(over="ignore"):
        shares = np.exp((logits - logits.max()) * inverse) * np.float32(ONE)
    weight = [int(share) for share in shares]
    order = sorted(range(size), key=lambda token: (-float(logits[token]), token))
    if 0 < top_k < size:
        order = order[:top_k]
    order.sort(key=lambda token: (-weight[token], token))
    if top_p < 1.0:
        total = sum(weight[token] for token in order)
        target = min(max(math.ceil(top_p * total), 1), total)
        running = 0
        for length, token in enumerate(order, 1):
            running += weight[token]
            if running >= target:
                order = order[:length]
                break
    order = [token for token in order if weight[token] >= math.ceil(min_p * ONE)]
    at = (bits * sum(weight[token] for token in order)) >> 64
    running = 0
    for token in sorted(order):
        running += weight[token]
        if running > at:
            return token
    raise AssertionError("the weights do not cover the draw")


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, -1, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, 70, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.5, 0, 0.999999, 0.0),
        (1.0, 0, 1e-9, 0.0),
        (1.0, 40, 0.8, 0.0),
        (2.0, 0, 1.0, 0.1),
        (2.0, 100, 0.95, 0.05),
        (1e-30, 0, 0.5, 0.0),
        (1e-300, 0, 1.0, 0.0),
    ],
)
def test_draw_token_equals_its_definition(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    with np.errstate(over="ignore"):
        for i, logits in enumerate(rows()):
            for position in range(3):
                bits = draw64(i, position)
                got = draw_token(
                    logits.copy(),
                    logits.max(),
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    min_p=min_p,
                    bits=bits,
                )
                expected = defined_choice(logits, temperature, top_k, top_p, min_p, bits)
                assert got == expected, (i, position)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=300), st.integers(0, 320))
def test_top_ids_equals_a_full_sort(values: list[int], count: int) -> None:
    logits = np.array(values, np.float32)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert top_ids(logits, count).tolist() == expected


def test_top_ids_of_rows_with_groups() -> None:
    for logits in rows():
        order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
        for count in (1, 5, 20, 200):
            assert top_ids(logits, count).tolist() == order[:count]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 2**30), max_size=60),
    st.floats(0, 1, exclude_min=True),
)
def test_top_p_keeps_the_shortest_prefix(values: list[int], top_p: float) -> None:
    weights = np.array([ONE, *values, ONE >> 7, ONE >> 7, 1], np.int64)
    total = int(weights.sum())
    kept = top_p_keep(weights, total, top_p)
    order = sorted(range(len(weights)), key=lambda i: (-int(weights[i]), i))
    target = min(max(math.ceil(top_p * total), 1), total)
    assert kept.tolist() == sorted(order[: len(kept)])
    assert int(weights[kept].sum()) >= target
    assert int(weights[order[: len(kept) - 1]].sum()) < target


def test_top_p_of_long_rows() -> None:
    rng = np.random.default_rng(3)
    for spread in (1, 3, 1000, 2**30):
        weights = np.append(rng.integers(ONE // 2 - spread, ONE // 2 + 1, 20000), ONE)
        weights[rng.random(len(weights)) < 0.3] //= 4000
        weights[0] = 0
        total = int(weights.sum())
        order = np.lexsort((np.arange(len(weights)), -weights))
        running = np.cumsum(weights[order])
        for top_p in (1e-6, 0.1, 0.5, 0.9, 0.9999, 0.9999999, 1 - 1e-13):
            target = min(math.ceil(top_p * total), total)
            length = int(np.searchsorted(running, target)) + 1
            kept = top_p_keep(weights, total, top_p)
            assert np.array_equal(kept, np.sort(order[:length]))


def test_pick_follows_the_weights() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 5, 3000) * (rng.random(3000) < 0.02)
    draws = [pick(weights, draw64(9, position)) for position in range(30000)]
    counts = np.bincount(draws, minlength=3000)
    assert not counts[weights == 0].any()
    used = weights > 0
    expected = 30000 * weights[used] / weights.sum()
    chi_square = float(((counts[used] - expected) ** 2 / expected).sum())
    degrees = int(used.sum()) - 1
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_exponentials_do_not_depend_on_where_an_element_lies() -> None:
    """Top-k computes weights of candidates only: they must equal those of the full row."""
    rng = np.random.default_rng(1)
    logits = (rng.standard_normal(4099) * 5).astype(np.float32)
    peak, inverse = logits.max(), np.float32(1 / 0.7)
    full = token_weights(logits.copy(), peak, inverse)
    assert full.max() == ONE
    for _ in range(50):
        ids = rng.choice(4099, rng.integers(1, 60), replace=False)
        assert np.array_equal(token_weights(logits[ids], peak, inverse), full[ids])
    buffer = np.empty(4099 + 16, np.float32)
    for offset in range(16):
        view = buffer[offset : offset + 4099]
        view[:] = logits
        assert np.array_equal(token_weights(view, peak, inverse), full)
