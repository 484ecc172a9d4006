"""``plan.ops.ExpertLinear`` on the device: the bits of plain products with each expert's matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.cuda_experts import Experts, Form, draw_ids  # noqa: E402

from penstock.backends.cuda.expert_matrix import ExpertMatrix, ExpertShape  # noqa: E402
from penstock.backends.cuda.kernels import expert_product as grouped  # noqa: E402
from penstock.backends.cuda.kernels import tiles  # noqa: E402
from penstock.backends.cuda.matrix import Shape  # noqa: E402
from penstock.backends.cuda.warm_up import warm_rows  # noqa: E402
from penstock.backends.cuda.workspace import Workspace, carved_bytes  # noqa: E402
from penstock.backends.reference.experts import expert_product  # noqa: E402
from penstock.backends.reference.numerics import as_bfloat16  # noqa: E402
from penstock.models.spec import ClampedSwiglu, Gating  # noqa: E402
from penstock.quant import GridScheme, GroupScheme  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]

FORMS = [
    Form(),
    Form("float32", x_dtype=torch.float32),
    Form("float16", x_dtype=torch.float16),
    *(
        Form("bfloat16", scheme, weight_only)
        for scheme in (
            GridScheme(8),
            GridScheme(4, 32),
            GroupScheme(4, 32),
            GroupScheme(4, 128, True),
            GroupScheme(8, 64, True),
            GroupScheme(8, None),
            GroupScheme(4, None, True),
        )
        for weight_only in (False, True)
    ),
]


def drawn(*shape: int, seed: int = 0) -> Any:
    """Normal numbers that bfloat16 and float16 hold, not centred on 0."""
    values = (np.random.default_rng(seed).standard_normal(shape) + 0.25).astype(ml_dtypes.bfloat16)
    return values.astype(np.float32)


def make(form: Form, experts: int, n: int, k: int, gated: Gating | None = None) -> Experts:
    weights = drawn(experts, n * (2 if gated is not None else 1), k, seed=1)
    return Experts(form, weights, gated, drawn(*weights.shape[:2], seed=2))


@pytest.mark.thinned(13)
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_rows_have_the_bits_of_plain_products(form: Form, each: bool, device: Any) -> None:
    """A row of x for each token, or one for each of a token's experts; some experts have more rows
    than a tile, others none."""
    generator = np.random.default_rng(5)
    tokens, times, experts, k = 20, 2, 9, 200
    ids = draw_ids(generator, tokens, 6, times)
    ids[:18, 0] = 6
    x = drawn(tokens * (times if each else 1), k)
    mixture = make(form, experts, 40, k)
    got = mixture.run(x, ids, device)
    np.testing.assert_array_equal(got, mixture.each_alone(x, ids, device))
    for rows in (slice(4, 5), slice(3, 6)):  # one token is not sorted at all
        some = x.reshape(tokens, -1, k)[rows].reshape(-1, k)
        alone = mixture.run(some, ids[rows], device)
        np.testing.assert_array_equal(alone, got.reshape(tokens, -1)[rows].reshape(alone.shape))


@pytest.mark.slow
@pytest.mark.thinned(7)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[1], FORMS[5], FORMS[8]], ids=str)
@pytest.mark.parametrize("gated", ["silu", "gelu_tanh", ClampedSwiglu(0.7, 1.702)], ids=str)
def test_gates_and_biases(form: Form, gated: Gating, device: Any) -> None:
    generator = np.random.default_rng(7)
    ids = draw_ids(generator, 6, 4, 2)
    x = drawn(6, 130) / np.float32(16)
    mixture = make(form, 4, 33, 130, gated)
    for case in (mixture, replace(mixture, biases=None)):
        got = case.run(x, ids, device)
        np.testing.assert_array_equal(got, case.each_alone(x, ids, device))
        rounded = case.run(x, ids, device, torch.bfloat16)
        np.testing.assert_array_equal(rounded, as_bfloat16(got))


@pytest.mark.parametrize("gated", [None, "silu", ClampedSwiglu(0.7, 1.702)], ids=str)
def test_products_are_the_references(gated: Any, device: Any) -> None:
    ids = draw_ids(np.random.default_rng(8), 7, 5, 2)
    x = drawn(7, 96) / np.float32(4)
    mixture = make(FORMS[0], 5, 20, 96, gated)
    parts = np.split(mixture.weights, 1 if gated is None else 2, axis=1)
    assert mixture.biases is not None
    biases = np.split(mixture.biases, len(parts), axis=1)
    wanted = expert_product(x, ids, parts, biases, gated)
    np.testing.assert_allclose(mixture.run(x, ids, device), wanted, rtol=2e-4, atol=1e-4)


def test_a_clamped_gate_keeps_nan(device: Any) -> None:
    ids, x = np.array([[0], [1]], np.int32), drawn(2, 64)
    x[1, 3] = np.nan
    got = make(FORMS[0], 2, 5, 64, ClampedSwiglu(0.7, 1.702)).run(x, ids, device)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


@pytest.mark.thinned(7)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[6]], ids=str)
@pytest.mark.parametrize("gated", [None, "silu"])
def test_one_program_and_many_add_splits_alike(
    form: Form, gated: Any, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 1100
    ids = np.array([[0, 2], [2, 1]], np.int32)
    x, mixture = drawn(2, k), make(form, 3, 33, k, gated)
    assert tiles.splits_of(33, k)[0] > 1
    many = mixture.run(x, ids, device)
    np.testing.assert_array_equal(many, mixture.each_alone(x, ids, device))
    monkeypatch.setattr(tiles, "MAX_PARALLEL", 0)
    np.testing.assert_array_equal(mixture.run(x, ids, device), many)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("form", [FORMS[0], FORMS[3], FORMS[7]], ids=str)
def test_rows_of_others_and_experts_without_rows_do_not_matter(form: Form, device: Any) -> None:
    generator = np.random.default_rng(9)
    ids = draw_ids(generator, 19, 6, 2)
    x, mixture = drawn(19, 70), make(form, 8, 20, 70)
    whole = mixture.run(x, ids, device)
    spoilt = x.copy()
    spoilt[4] = np.nan
    mine = np.arange(38) // 2 == 4
    got = mixture.run(spoilt, ids, device)
    assert np.isnan(got[mine]).all()
    np.testing.assert_array_equal(got[~mine], whole[~mine])
    if form.scheme is None:
        weights = mixture.weights.copy()
        weights[6:] = np.nan
        got = replace(mixture, weights=weights).run(x, ids, device)
        np.testing.assert_array_equal(got, whole)


def test_no_rows(device: Any) -> None:
    ids, x = np.empty((0, 2), np.int32), np.empty((0, 70), np.float32)
    matrix = Form().matrix(Shape(5 * 4, 70, 1), Workspace(device))
    experts = ExpertMatrix(
        matrix, ExpertShape(5, 70, 3, False, 4, 2, 2), torch.bfloat16, Workspace(device)
    )
    nothing = torch.empty(0, dtype=torch.int32, device=device)
    by_expert = grouped.RowsByExpert(torch.from_numpy(ids).to(device), nothing, nothing)
    out = torch.empty((0, 5), device=device)
    experts.product(torch.from_numpy(x).to(device).bfloat16(), by_expert, out, None, None)
    with pytest.raises(ValueError, match="are not those of 0 tokens"):
        experts.product(out, by_expert, out, None, None)


SHAPES = [
    ExpertShape(768, 2048, 2048, True, 128, 8, 8),
    ExpertShape(2048, 768, 2048, False, 128, 8, 1),
    ExpertShape(14336, 4096, 2048, True, 8, 2, 2),
    ExpertShape(300, 1100, 90, True, 5, 3, 3),
]


@pytest.mark.parametrize("form", FORMS[:1] + FORMS[3:9], ids=str)
@pytest.mark.parametrize("at", [(8, 0), (9, 0)])
def test_warm_rows_and_scratch_are_those_of_any_number(form: Form, at: tuple[int, int]) -> None:
    nowhere = Workspace(torch.device("meta"), at)
    for shape in SHAPES:
        store = form.matrix(Shape(shape.experts * shape.weight_rows, shape.k, 1), nowhere)
        matrix = ExpertMatrix(store, shape, form.x_dtype, nowhere)
        rows = warm_rows([matrix], 2048)
        assert len(rows) <= 16
        every = range(1, shape.max_rows + 1)
        warmed = {matrix.tile(min(n, shape.max_rows)) for n in (1, *rows)}
        assert warmed == {matrix.tile(n) for n in every}
        reserved = grouped.scratch(store.weights, shape, form.x_dtype, at)
        most = 0
        for tokens in every:
            tile = matrix.tile(tokens)
            routed = tokens * shape.times
            programs = tiles.most_tiles(routed, shape.experts, tile.rows) * -(-shape.n // tile.cols)
            assert not tile.parallel or programs <= tiles.MAX_PARALLEL
            parts = grouped._parts(store.weights, tile, tokens, shape, form.x_dtype)
            most = max(most, carved_bytes(*parts))
            if not store.weights.integers:  # the order of additions is a plain product's
                padded = store.weights.padded
                assert (tile.splits, tile.length) == tiles.splits_of(shape.n, padded)
        assert most == reserved


def test_few_tokens_fill_a_gpu() -> None:
    """A token's experts alone are too few programs without splits of K, as plain products are."""
    nowhere = Workspace(torch.device("meta"), (9, 0))
    shape = SHAPES[0]
    store = Form().matrix(Shape(shape.experts * shape.weight_rows, shape.k, 1), nowhere)
    matrix = ExpertMatrix(store, shape, torch.bfloat16, nowhere)
    one, many = matrix.tile(1), matrix.tile(2048)
    assert one.parallel
    assert one.splits * 8 * -(-shape.n // one.cols) >= tiles.PROGRAMS
    assert not many.parallel
    assert (one.rows, matrix.tile(64).rows, many.rows) == (16, 16, 64)
