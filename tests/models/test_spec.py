"""Declarations that contradict themselves are refused where they are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_plans import make_spec

from penstock.errors import ConfigError, ModelError
from penstock.models.position_scale import PositionScale
from penstock.models.spec import Chunk, ClampSpec, MlpSpec, PositionTable, QkNormSpec
from penstock.plan import ops
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower


def test_a_table_of_positions_has_all_of_them() -> None:
    spec = make_spec()
    with pytest.raises(ModelError, match="has not all of 512 positions"):
        replace(spec, learned_positions=PositionTable(513, offset=2))
    learned = replace(spec, learned_positions=PositionTable(514, offset=2))
    assert lower(learned).weights["positions"].shape == (514, 72)
    with pytest.raises(ConfigError, match=r"embeddings of 512 positions.*lower max_model_len"):
        lower(learned, max_positions=513)


def test_attention_that_contradicts_itself() -> None:
    attention = make_spec().layers[0].attention
    for window in (0, Chunk(0)):
        with pytest.raises(ModelError, match="have at least one token"):
            replace(attention, window=window)
    behind = ClampSpec(2.0, behind_norms=True)
    for norm in (None, QkNormSpec(1e-5, after_rope=True)):
        with pytest.raises(ModelError, match="cannot be clamped behind norms"):
            replace(attention, clamp=behind, qk_norm=norm)
    replace(attention, clamp=behind, qk_norm=QkNormSpec(1e-5))


def test_xielu_has_no_gate() -> None:
    with pytest.raises(ModelError, match="not gated"):
        MlpSpec(8, "xielu")
    MlpSpec(8, "xielu", gated=False)


def test_explain_names_chunks() -> None:
    spec = make_spec()
    chunked = replace(spec.layers[0], mixer=replace(spec.layers[0].attention, window=Chunk(8192)))
    text = explain(fuse(lower(replace(spec, layers=(spec.layers[0], chunked)))))
    assert "1 of 1 layer in chunks of 8,192" in text
    assert "window=None" not in text
    assert "chunk=8192" in text


def test_norms_of_queries_and_keys_that_contradict_themselves() -> None:
    with pytest.raises(ModelError, match="no bias"):
        QkNormSpec(1e-5, bias=True)
    with pytest.raises(ModelError, match="no weights of their own"):
        QkNormSpec(1e-5, over="projection", each_head=True)


@given(
    period=st.integers(1, 50),
    offset=st.integers(0, 60),
    positions=st.integers(1, 200),
    beta=st.floats(0, 2),
)
def test_factors_are_those_of_every_position(
    period: int, offset: int, positions: int, beta: float
) -> None:
    factors = PositionScale(beta, period, offset).factors(positions)
    places = (np.arange(positions) + offset) // period
    expected = 1 + beta * np.log(1.0 + places)
    np.testing.assert_allclose(factors[places], expected, rtol=2e-7)
    assert len(factors) == places[-1] + 1


def test_a_scale_by_position_leaves_rotation_and_write_fused() -> None:
    spec = make_spec(qk_norm=True)
    attention = replace(spec.layers[0].attention, position_scale=PositionScale(0.1, 8))
    spec = replace(spec, layers=(replace(spec.layers[0], mixer=attention),))
    kinds = [op.kind for op in fuse(lower(spec)).ops]
    assert kinds[2:6] == ["Linear", "RopeWrite", "ScaleByPosition", "Attention"]


@pytest.mark.parametrize(
    "norm",
    [
        QkNormSpec(1e-5, weight=False),
        QkNormSpec(1e-5, kind="layer"),
        QkNormSpec(1e-5, each_head=True),
        QkNormSpec(1e-5, after_rope=True),
    ],
)
def test_other_norms_of_heads_are_not_fused(norm: QkNormSpec) -> None:
    spec = make_spec()
    attention = replace(spec.layers[0].attention, qk_norm=norm)
    spec = replace(spec, layers=(replace(spec.layers[0], mixer=attention),))
    assert not any(isinstance(op, ops.RopeWrite) for op in fuse(lower(spec)).ops)


def test_a_gate_of_attention_is_computed_for_selected_rows_alone_in_the_last_layer() -> None:
    spec = make_spec(bias=True)
    gated = replace(spec.layers[0], mixer=replace(spec.layers[0].attention, output_gate=True))
    plan = fuse(lower(replace(spec, layers=(gated, gated)), "bfloat16"))
    gates = [op for op in plan.ops if isinstance(op, ops.Gate)]
    assert [plan.buffers[op.out].rows.base for op in gates] == ["T", "S"]
    assert [plan.buffers[op.out].element for op in gates] == ["bfloat16"] * 2
    assert plan.weights["layers.0.attn_gate.bias"].shape == (96,)
