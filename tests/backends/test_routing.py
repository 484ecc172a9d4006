"""Which experts a token is given to, and its shares: ties, NaN, groups, biases, and transformers'
routers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.routings import KINDS, routings

from penstock.backends.reference.experts import route
from penstock.models.experts_spec import Scores
from penstock.models.spec import Routing

VALUES = st.sampled_from([-3.0, -1.0, -0.0, 0.0, 0.5, 0.5, 2.0, 40.0, float("-inf")])


def test_a_routing_is_shown_by_what_it_does() -> None:
    assert str(Routing()) == "softmax"
    chosen = Routing("softmax_chosen", normalize=False, bias=True)
    assert str(chosen) == "softmax_chosen normalize=False bias=True"


def rows_of(rows: list[list[float]]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(routings(), st.data())
def test_a_row_is_routed_alike_in_any_company(
    drawn: tuple[Routing, int, int], data: st.DataObject
) -> None:
    routing, experts, top_k = drawn
    row = st.lists(VALUES | st.just(float("nan")), min_size=experts, max_size=experts)
    logits = rows_of(data.draw(st.lists(row, min_size=1, max_size=4)))
    bias = rows_of([data.draw(row)])[0] if routing.choice_bias else None
    ids, shares = route(logits, top_k, routing, bias)
    assert (ids.dtype, shares.dtype) == (np.int32, np.float32)
    assert ids.shape == shares.shape == (len(logits), top_k)
    for i, each in enumerate(ids):
        assert len(set(each.tolist())) == top_k
        alone = route(logits[i : i + 1], top_k, routing, bias)
        np.testing.assert_array_equal(alone[0][0], each)
        np.testing.assert_array_equal(alone[1][0], shares[i])
        assert np.isnan(shares[i]).all() or not np.isnan(logits[i]).any()
        groups = set((each // (experts // routing.groups)).tolist())
        assert len(groups) <= routing.groups_chosen


@pytest.mark.parametrize("kind", KINDS)
def test_equal_scores_go_to_lower_ids_and_earlier_groups(kind: Scores) -> None:
    ids, _ = route(rows_of([[0.0, 1.0, -0.0, 1.0, 0.0, 1.0]]), 5, Routing(kind))
    assert ids.tolist() == [[1, 3, 5, 0, 2]]
    if kind != "sparsemixer":
        tied = rows_of([[1.0, 2.0, 2.0, 1.0, 2.0, 1.0]])
        for value in ("max", "top2"):
            grouped = Routing(kind, groups=3, groups_chosen=2, group_score=value)
            assert route(tied, 3, grouped)[0].tolist() == [[1, 2, 0]]


def test_logits_decide_where_sigmoids_are_equal() -> None:
    """Beyond 17 a sigmoid is 1 in float32."""
    logits = rows_of([[20.0, 30.0, 25.0, 40.0]])
    ids, shares = route(logits, 2, Routing("sigmoid", normalize=False))
    assert (ids.tolist(), shares.tolist()) == ([[3, 1]], [[1.0, 1.0]])
    biased = route(logits, 2, Routing("sigmoid", choice_bias=True), np.zeros(4, np.float32))
    assert biased[0].tolist() == [[0, 1]]  # scores decide, and they are equal


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_lowest_and_spoils_all_shares_of_its_row(kind: Scores) -> None:
    nan = float("nan")
    ids, shares = route(rows_of([[nan, 1.0, nan, 2.0], [0.0, 1.0, 3.0, 2.0]]), 3, Routing(kind))
    assert ids.tolist() == [[3, 1, 0], [2, 3, 1]]
    assert np.isnan(shares[0]).all()
    assert np.isfinite(shares[1]).all()


def test_a_bias_chooses_and_has_no_share() -> None:
    logits, bias = rows_of([[0.0, 0.0, 0.0]]), rows_of([[0.0, 5.0, 1.0]])[0]
    for kind in ("softmax", "softmax_chosen", "sigmoid"):
        ids, shares = route(logits, 2, Routing(kind, choice_bias=True), bias)  # type: ignore[arg-type]
        assert (ids.tolist(), shares.tolist()) == ([[1, 2]], [[0.5, 0.5]])


def test_shares_are_multiplied_by_numbers_of_their_experts() -> None:
    scale = rows_of([[5.0, 0.5, -2.0]])[0]
    ids, shares = route(rows_of([[0.0, 1.0, 1.0]]), 2, Routing(share_scale=True), share_scale=scale)
    assert (ids.tolist(), shares.tolist()) == ([[1, 2]], [[0.25, -1.0]])


def test_groups_by_their_best_or_their_two_best() -> None:
    logits = rows_of([[3.0, -9.0, 2.0, 2.0, 1.0, 1.0]])
    best = Routing("sigmoid", groups=3, group_score="max")
    assert route(logits, 2, best)[0].tolist() == [[0, 1]]
    two_best = Routing("sigmoid", groups=3, group_score="top2")
    assert route(logits, 2, two_best)[0].tolist() == [[2, 3]]


def test_sums_have_a_least_value_and_shares_a_scale() -> None:
    logits = rows_of([[0.0, 0.0, 0.0, 0.0]])
    shares = route(logits, 2, Routing(normalize_least=0.8))[1]
    np.testing.assert_allclose(shares, [[0.25 / 0.8] * 2], rtol=1e-6)
    shares = route(logits, 2, Routing(normalize_eps=0.5, scale=3.0))[1]
    np.testing.assert_allclose(shares, [[0.75] * 2], rtol=1e-6)
    shares = route(logits, 4, Routing("sigmoid", normalize=False, scale=0.5))[1]
    assert shares.tolist() == [[0.25] * 4]


def test_sparsemixer_leaves_out_what_is_far_below() -> None:
    logits = rows_of([[10.0, 9.9, 5.0, 9.0]])
    ids, shares = route(logits, 2, Routing("sparsemixer", normalize=False, jitter=0.01))
    assert ids.tolist() == [[0, 1]]  # 9.9 comes within a hundredth of 10 twice, 9 to neither
    np.testing.assert_allclose(shares, [[1 / (1 + np.exp(-0.1)), 1.0]], rtol=1e-5)
    zero = route(rows_of([[0.0, 0.0, -1.0]]), 2, Routing("sparsemixer", normalize=False))
    np.testing.assert_allclose(zero[1], [[0.5, 1.0]])


def transformers_router(kind: str, experts: int, top_k: int, **fields: Any) -> Any:
    """A router whose input is the logits themselves, and the routing that it has here."""
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("transformers").models
    common = {"hidden_size": experts, "num_experts_per_tok": top_k, "num_attention_heads": 1}
    if kind == "v2":
        from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

        config = models.deepseek_v2.DeepseekV2Config(n_routed_experts=experts, **common, **fields)
        router: Any = DeepseekV2TopkRouter(config)
    elif kind == "v3":
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

        config = models.deepseek_v3.DeepseekV3Config(n_routed_experts=experts, **common, **fields)
        router = DeepseekV3TopkRouter(config)
    else:
        from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

        config = models.phimoe.PhimoeConfig(num_local_experts=experts, **common, **fields)
        router = PhimoeTopKRouter(config).eval()
    router.weight.data = torch.eye(experts)
    return router


@pytest.mark.parametrize(
    ("kind", "experts", "top_k", "fields", "routing"),
    [
        (
            "v2",
            12,
            3,
            {"topk_method": "greedy", "routed_scaling_factor": 1.0},
            Routing(normalize=False),
        ),
        (
            "v2",
            12,
            4,
            {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
            | {"routed_scaling_factor": 16.0},
            Routing(normalize=False, scale=16.0, groups=4, groups_chosen=2),
        ),
        (
            "v3",
            16,
            5,
            {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
            Routing(
                "sigmoid",
                normalize_eps=1e-20,
                scale=2.5,
                groups=4,
                groups_chosen=2,
                group_score="top2",
                choice_bias=True,
            ),
        ),
        (
            "v3",
            5,
            5,
            {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
            Routing("sigmoid", normalize=False, choice_bias=True),
        ),
        (
            "phimoe",
            16,
            2,
            {"router_jitter_noise": 0.1},
            Routing("sparsemixer", normalize=False, jitter=0.1),
        ),
    ],
)
def test_transformers_routers(
    kind: str, experts: int, top_k: int, fields: dict[str, Any], routing: Routing
) -> None:
    torch = pytest.importorskip("torch")
    router = transformers_router(kind, experts, top_k, **fields)
    generator = np.random.default_rng(experts)
    logits = (3 * generator.standard_normal((200, experts))).astype(np.float32)
    bias = None
    if routing.choice_bias:
        bias = generator.standard_normal(experts).astype(np.float32)
        router.e_score_correction_bias.copy_(torch.from_numpy(bias))
    with torch.no_grad():
        _, theirs, chosen = router(torch.from_numpy(logits))
    ids, shares = route(logits, top_k, routing, bias)
    order, wanted = np.argsort(ids, axis=1), np.argsort(chosen.numpy(), axis=1)
    np.testing.assert_array_equal(
        np.take_along_axis(ids, order, 1), np.take_along_axis(chosen.numpy(), wanted, 1)
    )
    np.testing.assert_allclose(
        np.take_along_axis(shares, order, 1),
        np.take_along_axis(theirs.numpy(), wanted, 1),
        rtol=1e-5,
    )
