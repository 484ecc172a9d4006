"""Routings as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.models.experts_spec import Scores
from penstock.models.spec import Routing

KINDS: tuple[Scores, ...] = ("softmax", "softmax_chosen", "sigmoid", "sparsemixer")


@st.composite
def routings(draw: st.DrawFn) -> tuple[Routing, int, int]:
    """A routing, the number of experts, and how many a token has."""
    groups, size = draw(st.sampled_from([(1, 1), (1, 5), (1, 40), (2, 3), (3, 2), (4, 4), (5, 7)]))
    kind = draw(st.sampled_from(KINDS))
    if kind == "sparsemixer":
        groups, size = 1, groups * size
    chosen = draw(st.integers(1, groups))
    routing = Routing(
        kind,
        normalize=draw(st.booleans()),
        normalize_eps=draw(st.sampled_from([0.0, 1e-20])),
        normalize_least=draw(st.sampled_from([0.0, 0.7])),
        scale=draw(st.sampled_from([1.0, 2.5])),
        groups=groups,
        groups_chosen=chosen,
        group_score=draw(st.sampled_from(["max", "top2"])) if size > 1 else "max",
        choice_bias=kind != "sparsemixer" and draw(st.booleans()),
        jitter=0.1,
    )
    return routing, groups * size, draw(st.integers(1, min(chosen * size, 9)))
