"""Gradients of rounded weights, and where their training begins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.interface.adjustable import F32, RowValues, ScaledPoints, SparseValues
from penstock.train.adjustable_weights import weight_of
from penstock.train.fine_tuning import rate_at


def as_it_is(values: F32) -> F32:
    return values


def drawn(seed: int, n: int, runs: int, run: int, **options: bool) -> ScaledPoints:
    """Codes of 3 bits, and what they were rounded from: anything nearer to them than to others, or
    not."""
    draws = np.random.default_rng(seed)
    codes = draws.integers(0, 8, (n, runs * run)).astype(np.uint8)
    scales = draws.uniform(0.1, 2, n * runs).astype(np.float32)
    zeros = draws.integers(0, 8, n * runs).astype(np.int32)
    wanted = draws.normal(0, 4, codes.shape).astype(np.float32)
    return ScaledPoints(codes, scales, zeros, run, as_it_is, 7, wanted=wanted, **options)


def plain(initial: ScaledPoints) -> F32:
    """What the codes stand for."""
    own = initial.points.reshape(-1, initial.run).astype(np.int32) - initial.zeros[:, None]
    values: F32 = (own.astype(np.float32) * initial.scales[:, None]).reshape(initial.shape)
    return values


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))
def test_training_begins_at_the_codes_that_were_chosen(
    seed: int, n: int, runs: int, run: int
) -> None:
    initial = drawn(seed, n, runs, run, shifts=True)
    weight = weight_of(initial)
    assert np.array_equal(weight().detach().numpy(), plain(initial))
    made = weight.made()
    assert isinstance(made, ScaledPoints)
    assert np.array_equal(made.points, initial.points)
    assert np.array_equal(made.scales, initial.scales)
    assert np.array_equal(made.zeros, initial.zeros)


def test_columns_in_another_order() -> None:
    initial = drawn(1, 2, 2, 3)
    columns = np.array([3, 0, 5, 1, 4, 2], np.int32)
    shuffled = ScaledPoints(
        initial.points, initial.scales, initial.zeros, 3, as_it_is, 7, columns=columns
    )
    assert np.array_equal(weight_of(shuffled)().detach().numpy()[:, columns], plain(initial))


def gradients(weight: torch.nn.Module, towards: Tensor) -> dict[str, Tensor]:
    (weight() * towards).sum().backward()
    return {name: p.grad for name, p in weight.named_parameters() if p.grad is not None}


def test_gradients_of_codes_that_stay() -> None:
    whole = drawn(2, 3, 2, 4)
    initial = ScaledPoints(whole.points, whole.scales, whole.zeros, 4, as_it_is, 7, shifts=True)
    towards = torch.randn(3, 8)
    found = gradients(weight_of(initial), towards)
    logarithms = torch.zeros(6, requires_grad=True)
    zeros = torch.from_numpy(whole.zeros.astype(np.float32)).requires_grad_()
    points = torch.from_numpy(whole.points.reshape(-1, 4)).float()
    scales = torch.from_numpy(whole.scales) * torch.exp(logarithms)
    ((points - zeros[:, None]) * scales[:, None] * towards.reshape(-1, 4)).sum().backward()
    torch.testing.assert_close(found["logarithms"], logarithms.grad)
    torch.testing.assert_close(found["zeros"], zeros.grad)


def test_gradients_of_codes_that_change() -> None:
    """Those of the same expression whose rounding passes gradients on as they are."""
    initial = drawn(3, 3, 2, 4, shifts=True)
    weight = weight_of(initial)
    with torch.no_grad():  # some codes are beyond the last, and so get no gradients
        weight.get_parameter("steps").mul_(1.5)
    towards = torch.randn(3, 8)
    found = gradients(weight, towards)
    steps = weight.get_parameter("steps").detach().clone().requires_grad_()
    logarithms = torch.zeros(6, requires_grad=True)
    zeros = torch.from_numpy(initial.zeros.astype(np.float32)).requires_grad_()
    first = torch.from_numpy(initial.scales)
    scales = (first * torch.exp(logarithms))[:, None]
    exact = steps * first[:, None] / scales
    rounded = exact + (exact.round() - exact).detach()
    codes = torch.clamp(rounded + zeros[:, None], 0, 7)
    assert ((rounded + zeros[:, None]) != codes).any()
    ((codes - zeros[:, None]) * scales * towards.reshape(-1, 4)).sum().backward()
    torch.testing.assert_close(found["logarithms"], logarithms.grad)
    torch.testing.assert_close(found["steps"], steps.grad)
    torch.testing.assert_close(found["zeros"], zeros.grad)


@pytest.mark.parametrize("codes", [True, False])
def test_zeros_of_sparse_matrices_stay(codes: bool) -> None:
    if codes:
        initial: ScaledPoints | SparseValues = drawn(4, 4, 2, 8, sparse=True)
        before = plain(initial) if isinstance(initial, ScaledPoints) else None
    else:
        before = np.where(np.arange(32).reshape(4, 8) % 4 < 2, np.float32(1), np.float32(0))
        initial = SparseValues(before, as_it_is)
    assert before is not None
    weight = weight_of(initial)
    optimizer = torch.optim.Adam(weight.parameters(), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        (weight() - torch.randn(before.shape)).square().sum().backward()
        optimizer.step()
    after = weight().detach().numpy()
    assert not after[before == 0].any()
    assert not np.array_equal(after, before)


def test_values_of_rows() -> None:
    codes = np.array([[0, 1, 1, 0], [1, 1, 0, 0]], np.uint8)
    apart = np.array([[False, False, True, False], [True, False, False, False]])
    values = np.array([[1, 2], [3, 4]], np.float32)
    outliers = np.array([9, 8], np.float32)
    weight = weight_of(RowValues(codes, values, apart, outliers, as_it_is))
    expected = [[1, 2, 9, 1], [8, 4, 3, 3]]
    assert weight().tolist() == expected
    found = gradients(weight, torch.arange(8.0).view(2, 4))
    assert found["values"].tolist() == [[3, 1], [13, 5]]
    assert found["outliers"].tolist() == [2, 4]


def test_rates_rise_and_fall() -> None:
    rates = [rate_at(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == pytest.approx(1.0)
    assert 0 < rates[-1] < 0.02
    assert rate_at(0, 1) == 1.0
