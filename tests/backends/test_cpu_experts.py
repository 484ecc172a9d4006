"""Mixtures of experts on every native variant: routing, products by expert, and their sum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_experts import TYPES, Experts, Form, combined, routed, scaled
from support.needs import native_module

from penstock.backends.cpu import native
from penstock.backends.reference.experts import combine, expert_product, route, scale_rows
from penstock.backends.reference.numerics import sigmoid
from penstock.backends.reference.schemes import quantized_product, rounded
from penstock.models.spec import ClampedSwiglu, Gating, Routing
from penstock.quant import GridScheme, GroupScheme

pytestmark = pytest.mark.thinned(5)

FLOATS = [Form("float32"), Form("bfloat16"), Form("float16")]
SCHEMES_OF_EXPERTS = [
    GridScheme(8),
    GridScheme(4),
    GroupScheme(4, 32),
    GroupScheme(8, 64, True),
    GroupScheme(4, None),
]
QUANTIZED = [Form("float32", scheme) for scheme in SCHEMES_OF_EXPERTS]
WEIGHT_ONLY = [Form("float32", scheme, True) for scheme in SCHEMES_OF_EXPERTS]
FORMS = [*FLOATS, *QUANTIZED, *WEIGHT_ONLY]


def distinct(rng: np.random.Generator, tokens: int, experts: int, chosen: int) -> Any:
    """Ids ``[tokens, chosen]`` of experts, each token's different ones."""
    order = rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (tokens, 1)), axis=1)
    return np.ascontiguousarray(order[:, :chosen])


@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("form", FORMS, ids=str)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_each_row_has_the_bits_of_a_plain_product_with_its_experts_matrix(
    isa: str, form: Form, data: st.DataObject
) -> None:
    module, rng = native_module(isa), np.random.default_rng(data.draw(st.integers(0, 999)))
    number = data.draw(st.integers(1, 5), "experts")
    chosen = data.draw(st.integers(1, number), "chosen")
    tokens = data.draw(st.sampled_from([1, 2, 3, 5, 17, 40]), "tokens")
    n, k = data.draw(st.integers(1, 90), "n"), data.draw(st.integers(1, 200), "k")
    experts = Experts.random(rng, form, number, n, k, gated=data.draw(st.booleans(), "gated"))
    ids = distinct(rng, tokens, number, chosen)
    rows = tokens * (chosen if data.draw(st.booleans(), "a row for each expert") else 1)
    types = st.sampled_from(sorted(TYPES))
    x = rng.standard_normal((rows, k)).astype(TYPES[data.draw(types, "x")])
    out = data.draw(types, "out")
    got = experts.run(module, x, ids, data.draw(st.integers(1, 4), "threads"), out)
    expected = experts.each_alone(module, x, ids, out)
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_more_rows_than_a_row_block_and_experts_without_rows(
    module: Any, form: Form, gated: bool
) -> None:
    """All rows to one of several experts, and to all but one."""
    rng = np.random.default_rng(5)
    experts = Experts.random(rng, form, 4, 37, 200, gated)
    x = rng.standard_normal((530, 200)).astype(ml_dtypes.bfloat16)
    one = np.full((530, 1), 2, np.int32)
    assert np.array_equal(experts.run(module, x, one, 3), experts.alone(module, 2, x))
    some = distinct(rng, 530, 3, 2)
    assert np.array_equal(experts.run(module, x, some), experts.each_alone(module, x, some))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_row_does_not_depend_on_its_batch_or_threads(module: Any, form: Form) -> None:
    rng = np.random.default_rng(6)
    experts = Experts.random(rng, form, 5, 70, 96, True)
    ids = distinct(rng, 60, 5, 3)
    x = rng.standard_normal((60, 96)).astype(np.float32)
    whole = experts.run(module, x, ids, 1)
    for threads in (2, 3, 4):
        assert np.array_equal(experts.run(module, x, ids, threads), whole)
    for first, last in ((0, 1), (7, 8), (9, 13), (20, 60)):
        some = experts.run(module, x[first:last], ids[first:last], 1 + last % 4)
        assert np.array_equal(some, whole[3 * first : 3 * last])


@pytest.mark.parametrize("form", QUANTIZED, ids=str)
def test_sums_of_integers_are_those_of_the_reference(module: Any, form: Form) -> None:
    rng = np.random.default_rng(7)
    experts = Experts.random(rng, form, 5, 45, 130)
    ids, x = distinct(rng, 9, 5, 3), rng.standard_normal((9, 130)).astype(np.float32)
    assert form.scheme is not None
    codes = [rounded(matrix, form.scheme, "an expert", False) for matrix in experts.parts[0]]
    multiply = partial(quantized_product, weight_only=False)
    expected = expert_product(x, ids, (codes,), (None,), None, multiply)
    got = experts.run(module, x, ids)
    if isinstance(form.scheme, GridScheme):
        assert np.array_equal(got, expected)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("form", FLOATS, ids=str)
def test_sums_of_floats_are_near_those_of_the_reference(module: Any, form: Form) -> None:
    rng = np.random.default_rng(8)
    experts = Experts.random(rng, form, 5, 45, 130, True)
    stored = [
        part.astype({"bfloat16": ml_dtypes.bfloat16}.get(form.dtype, form.dtype)).astype(np.float32)
        for part in experts.parts
    ]
    ids, x = distinct(rng, 9, 5, 3), rng.standard_normal((9, 130)).astype(np.float32)
    expected = expert_product(x, ids, stored, (None, None), "silu")
    np.testing.assert_allclose(experts.run(module, x, ids), expected, rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize("form", [FORMS[1], QUANTIZED[1], WEIGHT_ONLY[2]], ids=str)
def test_nan_and_infinity_stay_in_the_rows_of_their_token(module: Any, form: Form) -> None:
    rng = np.random.default_rng(9)
    experts = Experts.random(rng, form, 4, 33, 70)
    ids, x = distinct(rng, 12, 4, 2), rng.standard_normal((12, 70)).astype(np.float32)
    clean = experts.run(module, x, ids)
    for value in (np.nan, np.inf):
        poisoned = x.copy()
        poisoned[5, 60] = value
        got = experts.run(module, poisoned, ids)
        assert not np.isfinite(got[10:12]).any()
        assert np.array_equal(np.delete(got, (10, 11), 0), np.delete(clean, (10, 11), 0))


@st.composite
def routings(draw: st.DrawFn) -> tuple[Routing, int, int]:
    """A routing, the number of experts, and how many a token has."""
    scores = draw(st.sampled_from(["softmax", "softmax_chosen", "sigmoid", "sparsemixer"]))
    alone = scores == "sparsemixer"
    groups = 1 if alone else draw(st.integers(1, 4))
    group_score = draw(st.sampled_from(["max", "top2"]))
    size = draw(st.integers(2 if group_score == "top2" and groups > 1 else 1, 12))
    groups_chosen = draw(st.integers(1, groups))
    routing = Routing(
        scores=scores,
        normalize=draw(st.booleans()),
        normalize_eps=draw(st.sampled_from([0.0, 1e-20, 0.5])),
        normalize_least=draw(st.sampled_from([0.0, 0.25])),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        groups_chosen=groups_chosen,
        group_score=group_score,
        choice_bias=not alone and draw(st.booleans()),
        share_scale=draw(st.booleans()),
        jitter=draw(st.sampled_from([0.0, 0.01, 0.3])),
    )
    return routing, groups * size, draw(st.integers(1, groups_chosen * size))


@pytest.mark.parametrize("isa", native.runnable())
@settings(max_examples=150, deadline=None)
@given(drawn=routings(), data=st.data())
def test_routes_are_those_of_the_reference(
    isa: str, drawn: tuple[Routing, int, int], data: st.DataObject
) -> None:
    """Scores and biases are far from each other or equal: rounding decides nothing."""
    module, (routing, experts, chosen) = native_module(isa), drawn
    values = [-2.0, -1.5, -0.0, 0.0, 0.25, 0.5, 3.0, np.nan]
    if routing.scores not in ("sigmoid", "sparsemixer"):
        values += [1e30, -1e30]
    tokens = data.draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(values), min_size=experts, max_size=experts)
    logits = np.array(data.draw(st.lists(row, min_size=tokens, max_size=tokens)), np.float32)
    bias = None
    if routing.choice_bias:
        biases = st.sampled_from([0.0, -4.0, 64.0, 128.0])
        drawn_bias = data.draw(st.lists(biases, min_size=experts, max_size=experts))
        bias = np.array(drawn_bias, np.float32)
    scale = np.linspace(-1.5, 2, experts, dtype=np.float32) if routing.share_scale else None
    threads = data.draw(st.integers(1, 4))
    ids, shares = routed(module, logits, chosen, routing, bias, threads, scale)
    with np.errstate(all="ignore"):
        expected_ids, expected = route(logits, chosen, routing, bias, scale)
    assert np.array_equal(ids, expected_ids)
    np.testing.assert_allclose(shares, expected, rtol=4e-6, atol=1e-30)


@pytest.mark.parametrize("routing", [Routing(), Routing("sigmoid", groups=7, groups_chosen=3)])
def test_a_routes_bits_do_not_depend_on_its_batch(module: Any, routing: Routing) -> None:
    logits = np.random.default_rng(1).standard_normal((30, 77)).astype(np.float32)
    ids, shares = routed(module, logits, 6, routing, None, 4)
    for first, last in ((0, 1), (11, 12), (5, 30)):
        some_ids, some = routed(module, logits[first:last], 6, routing, None, 1)
        assert np.array_equal(some_ids, ids[first:last])
        assert np.array_equal(some, shares[first:last])


@pytest.mark.parametrize("columns", [1, 16, 45, 5000])
def test_sums_by_shares(module: Any, columns: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((9 * 3, columns)).astype(np.float32)
    shares = rng.random((9, 3)).astype(np.float32)
    whole = combined(module, x, 3, shares, 3)
    np.testing.assert_allclose(whole, combine(x, 3, shares), rtol=1e-5, atol=1e-6)
    assert np.array_equal(combined(module, x[6:9], 3, shares[2:3], 1), whole[2:3])
    assert np.array_equal(combined(module, x, 3, None), combine(x, 3, None))


@pytest.mark.parametrize("columns", [1, 16, 45, 5000])
@pytest.mark.parametrize("out", sorted(TYPES))
def test_rows_times_numbers(module: Any, columns: int, out: str) -> None:
    rng = np.random.default_rng(3)
    by = rng.standard_normal((5, 3)).astype(np.float32)
    for each, element in ((1, "float32"), (3, "float32"), (1, "bfloat16"), (3, "bfloat16")):
        x = rng.standard_normal((5 * each, columns)).astype(TYPES[element])
        plain = scale_rows(x.astype(np.float32), by).astype(TYPES[out])
        assert np.array_equal(scaled(module, x, by, False, out), plain)
        if out == "float32":
            squashed = scale_rows(x.astype(np.float32), sigmoid(by))
            np.testing.assert_allclose(scaled(module, x, by, True, out), squashed, rtol=1e-6)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], QUANTIZED[1], WEIGHT_ONLY[2]], ids=str)
@pytest.mark.parametrize("kind", ["gelu_tanh", "relu2", ClampedSwiglu(0.7, 1.7), None])
def test_each_expert_has_its_biases(module: Any, form: Form, kind: Gating | None) -> None:
    """As the plain product has, whose epilogue is compared with NumPy's besides."""
    rng = np.random.default_rng(4)
    experts = replace(
        Experts.random(rng, form, 3, 37, 70, kind is not None),
        gated=kind,
        biases=rng.standard_normal((3, 37 if kind is None else 74)).astype(np.float32),
    )
    ids, x = distinct(rng, 7, 3, 2), rng.standard_normal((7, 70)).astype(np.float32)
    got = experts.run(module, x, ids)
    assert np.array_equal(got, experts.each_alone(module, x, ids))
    if form.scheme is None:
        stored = [
            part.astype(ml_dtypes.bfloat16 if form.dtype == "bfloat16" else np.float32)
            for part in experts.parts
        ]
        parts = [part.astype(np.float32) for part in stored]
        biases = np.split(experts.biases, len(parts), axis=1)
        expected = expert_product(x, ids, parts, biases, kind)
        np.testing.assert_allclose(got, expected, rtol=5e-5, atol=1e-3)
