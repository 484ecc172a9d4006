"""Mixtures of experts: their ops in NumPy, and who refuses them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint

from penstock.backends.reference.experts import combine, expert_product, route
from penstock.backends.reference.schemes import quantized_product, rounded
from penstock.backends.registry import BACKENDS
from penstock.errors import ConfigError
from penstock.models.spec import Routing
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.quant import GridScheme, GroupScheme, QuantScheme
from penstock.weights.model_folder import load_model_spec

SCORES = st.lists(st.sampled_from([-1.5, -1.0, 0.0, 0.5, 2.0]), min_size=4, max_size=6)


@given(scores=SCORES, top_k=st.integers(1, 4), over_all=st.booleans(), normalize=st.booleans())
def test_a_row_goes_to_the_highest_scores_and_of_equal_ones_to_the_lowest_ids(
    scores: list[float], top_k: int, over_all: bool, normalize: bool
) -> None:
    routing = Routing("softmax" if over_all else "softmax_chosen", normalize)
    ids, shares = route(np.array([scores], np.float32), top_k, routing)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top_k]
    assert ids.tolist() == [expected]
    assert (ids.dtype, shares.dtype) == (np.int32, np.float32)
    of = scores if over_all else [scores[i] for i in expected]
    plain = np.exp([scores[i] for i in expected]) / np.exp(of).sum()
    np.testing.assert_allclose(shares[0], plain / plain.sum() if normalize else plain, rtol=1e-6)


def test_huge_scores_do_not_overflow() -> None:
    ids, shares = route(np.array([[1e30, 0.0, 1e30]], np.float32), 2, Routing(normalize=False))
    assert ids.tolist() == [[0, 2]]
    np.testing.assert_array_equal(shares, [[0.5, 0.5]])


@settings(deadline=None)
@given(rows=st.integers(0, 5), top_k=st.integers(1, 3), each=st.booleans(), seed=st.integers(0, 99))
def test_products_take_each_row_to_the_matrix_of_its_expert(
    rows: int, top_k: int, each: bool, seed: int
) -> None:
    """A row of x for each token, or one for each of a token's experts; then their sum by shares."""
    generator = np.random.default_rng(seed)
    gate, up = generator.standard_normal((2, 4, 5, 3)).astype(np.float32)
    x = generator.standard_normal((rows * top_k if each else rows, 3)).astype(np.float32)
    ids = generator.integers(0, 4, (rows, top_k)).astype(np.int32)
    shares = generator.random((rows, top_k)).astype(np.float32)
    out = expert_product(x, ids, (up,), (None,), None)
    gated = expert_product(x, ids, (gate, up), (None, None), "silu")
    assert out.shape == gated.shape == (rows * top_k, 5)
    for r in range(rows * top_k):
        row, expert = x[r if each else r // top_k], ids[r // top_k, r % top_k]
        g = gate[expert] @ row
        np.testing.assert_allclose(out[r], up[expert] @ row, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            gated[r], g / (1 + np.exp(-g)) * (up[expert] @ row), rtol=1e-4, atol=1e-5
        )
    sums = combine(out, top_k, shares)
    assert sums.shape == (rows, 5)
    for t in range(rows):
        parts = shares[t, :, None] * out[t * top_k : (t + 1) * top_k]
        np.testing.assert_allclose(sums[t], parts.sum(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight_only", [False, True])
@pytest.mark.parametrize(
    "scheme",
    [GridScheme(8), GridScheme(4), GroupScheme(4, 32), GroupScheme(8, None, True)],
    ids=str,
)
def test_quantized_products_are_those_of_the_experts_own_matrices(
    scheme: QuantScheme, weight_only: bool
) -> None:
    generator = np.random.default_rng(3)
    multiply = partial(quantized_product, weight_only=weight_only)
    matrices = generator.standard_normal((5, 7, 70)).astype(np.float32)
    experts = [rounded(matrix, scheme, "experts", weight_only) for matrix in matrices]
    ids = np.array([[4, 0, 2], [2, 3, 4]], np.int32)
    x = generator.standard_normal((2, 70)).astype(np.float32)
    out = expert_product(x, ids, (experts,), (None,), None, multiply)
    for r, expert in enumerate(ids.reshape(-1)):
        alone = multiply(x[r // 3, None], experts[expert])
        np.testing.assert_array_equal(out[r, None], alone)


def test_a_backend_without_kernels_for_experts_refuses_them_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = fuse(lower(load_model_spec(tiny_checkpoint("qwen3_moe"))))
    for name in ("cuda", "cpu", "reference"):
        BACKENDS[name].check_runnable(plan)
    monkeypatch.setattr(type(BACKENDS["cuda"]), "runs_experts", False)
    with pytest.raises(ConfigError, match=r"Qwen3Moe.* mixtures of experts, which the cuda "):
        BACKENDS["cuda"].check_runnable(plan)
    for family in ("llama", "gemma3", "phi3", "gpt_neox"):
        BACKENDS["cuda"].check_runnable(fuse(lower(load_model_spec(tiny_checkpoint(family)))))
