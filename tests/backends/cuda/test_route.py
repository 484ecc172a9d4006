"""``plan.ops.Route`` on the device beside NumPy's: who is chosen, ties, NaN, groups, shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.routings import KINDS, routings

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.kernels.route import route  # noqa: E402
from penstock.backends.reference import experts as reference  # noqa: E402
from penstock.models.experts_spec import Scores  # noqa: E402
from penstock.models.spec import Routing  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

NAN = float("nan")


def routed(
    logits: Any, top_k: int, routing: Routing, device: Any, bias: Any = None
) -> tuple[Any, Any]:
    """Routes from buffers whose rows are further apart than they are long."""
    rows, experts = logits.shape
    z = torch.full((rows, experts + 3), 1e9, device=device)
    z[:, :experts] = torch.from_numpy(logits)
    ids = torch.full((rows + 1, top_k + 2), -9, dtype=torch.int32, device=device)
    shares = torch.full((rows + 1, top_k + 2), -9.0, device=device)
    by = None if bias is None else torch.from_numpy(bias).to(device)
    route(z[:, :experts], routing, by, ids[:rows, :top_k], shares[:rows, :top_k])
    for buffer in (ids, shares):
        assert (buffer[rows] == -9).all()
        assert (buffer[:, top_k:] == -9).all()
    return ids[:rows, :top_k].cpu().numpy(), shares[:rows, :top_k].cpu().numpy()


def check(logits: Any, top_k: int, routing: Routing, device: Any, bias: Any = None) -> None:
    ids, shares = routed(logits, top_k, routing, device, bias)
    wanted, by = reference.route(logits, top_k, routing, bias)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_allclose(shares, by, rtol=3e-6, atol=1e-37)


@settings(deadline=None, max_examples=60)
@given(drawn=routings(), seed=st.integers(0, 999))
def test_random_logits_are_routed_as_by_the_reference(
    drawn: tuple[Routing, int, int], seed: int, device: Any
) -> None:
    routing, experts, top_k = drawn
    generator = np.random.default_rng(seed)
    logits = (3 * generator.standard_normal((5, experts))).astype(np.float32)
    bias = generator.standard_normal(experts).astype(np.float32) if routing.choice_bias else None
    check(logits, top_k, routing, device, bias)


@settings(deadline=None, max_examples=60)
@given(drawn=routings(), data=st.data())
def test_ties_infinities_and_nan(
    drawn: tuple[Routing, int, int], data: st.DataObject, device: Any
) -> None:
    routing, experts, top_k = drawn
    if routing.choice_bias or routing.group_score == "top2":
        return  # scores decide, whose last bits are those of another exponential
    value = st.sampled_from([-3.0, -1.0, -0.0, 0.0, 0.5, 0.5, 2.0, 40.0, -np.inf, np.inf, NAN])
    row = st.lists(value, min_size=experts, max_size=experts)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    check(np.array(rows, np.float32), top_k, routing, device)


def test_a_share_that_is_nan_spoils_the_sum_that_others_are_divided_by(device: Any) -> None:
    routing = Routing("sparsemixer", jitter=0.01)
    check(np.array([[-3.0, -3.0, np.inf]], np.float32), 2, routing, device)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_lowest_and_spoils_the_shares_of_its_row(kind: Scores, device: Any) -> None:
    logits = np.array([[NAN, 1.0, NAN, 2.0], [0.0, 1.0, 3.0, 2.0]], np.float32)
    ids, shares = routed(logits, 3, Routing(kind), device)
    assert ids.tolist() == [[3, 1, 0], [2, 3, 1]]
    assert np.isnan(shares[0]).all()
    assert np.isfinite(shares[1]).all()


def test_equal_scores_with_a_bias_and_in_groups(device: Any) -> None:
    zeros, bias = np.zeros((1, 3), np.float32), np.array([0.0, 5.0, 1.0], np.float32)
    for kind in ("softmax", "softmax_chosen", "sigmoid"):
        check(zeros, 2, Routing(kind, choice_bias=True), device, bias)  # type: ignore[arg-type]
        check(zeros, 2, Routing(kind, choice_bias=True), device, 0 * bias)  # type: ignore[arg-type]
    tied = np.array([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]], np.float32)
    for value in ("max", "top2"):
        routing = Routing("sigmoid", groups=3, groups_chosen=2, group_score=value)  # type: ignore[arg-type]
        assert routed(tied, 3, routing, device)[0].tolist() == [[1, 2, 0]]


@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (384, 8), (512, 10)])
def test_as_many_experts_as_there_are(experts: int, top_k: int, device: Any) -> None:
    logits = np.random.default_rng(experts).standard_normal((3, experts)).astype(np.float32)
    check(logits, top_k, Routing(), device)


def test_a_row_is_routed_alike_in_any_company(device: Any) -> None:
    """More rows than a program takes."""
    generator = np.random.default_rng(1)
    logits = generator.standard_normal((70, 12)).astype(np.float32)
    bias = generator.standard_normal(12).astype(np.float32)
    routing = Routing("sigmoid", groups=4, groups_chosen=2, group_score="top2", choice_bias=True)
    whole = routed(logits, 4, routing, device, bias)
    for rows in (slice(0, 1), slice(66, 70)):
        for some, all_ in zip(routed(logits[rows], 4, routing, device, bias), whole, strict=True):
            np.testing.assert_array_equal(some, all_[rows])
    ids, shares = routed(logits[:0], 4, routing, device, bias)
    assert ids.shape == shares.shape == (0, 4)
