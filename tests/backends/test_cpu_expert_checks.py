"""Ops of experts that are appended to an executor: what does not fit together is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native_arrays import as_bytes
from support.native_executor import COLUMNS, Buffers

HUGE = 2**63 - 1


def test_experts_that_do_not_fit_are_refused(executor: Any) -> None:
    buffers = Buffers(executor)
    x, logits, ids = buffers.add(), buffers.add(5), buffers.add(2, "int32")
    shares, few = buffers.add(2), buffers.add(3)
    inner, out = buffers.add(16, rows="2T"), buffers.add(rows="2T")
    others, scaled = buffers.add(2, "int32"), buffers.add(16, rows="3T")
    matrix = executor.add_matrix("float32", 16, COLUMNS, False, 5)
    fewer = executor.add_matrix("float32", 16, COLUMNS, False, 4)
    gated = executor.add_matrix("float32", 16, COLUMNS, True, 5)

    def route(to: int = ids, shares: int = shares, **changes: Any) -> None:
        options = {"scores": "softmax", "normalize": True, "normalize_eps": 0.0}
        options |= {"normalize_least": 0.0, "scale": 1.0, "groups": 1, "groups_chosen": 1}
        options |= {"top2": False, "jitter": 0.0, "choice_bias": None}
        options |= {"share_scale": None} | changes
        executor.append_route(logits=logits, ids=to, shares=shares, **options)

    with pytest.raises(ValueError, match="chosen before"):  # nobody has written the ids
        executor.append_expert_linear(matrix, None, x, ids, inner, "none")
    with pytest.raises(ValueError, match="ids and shares"):
        route(shares=few)
    for groups in (0, 2, 6):
        with pytest.raises(ValueError, match="groups of experts"):
            route(groups=groups)
    for chosen in (0, 2):
        with pytest.raises(ValueError, match="groups of experts"):
            route(groups_chosen=chosen)
    with pytest.raises(ValueError, match="groups of experts"):
        route(groups=5, groups_chosen=5, top2=True)
    with pytest.raises(ValueError, match="called 'best'"):
        route(scores="best")
    bias = executor.add_constant(as_bytes(np.zeros(5, np.float32)))
    with pytest.raises(ValueError, match="sparsemixer"):
        route(scores="sparsemixer", choice_bias=bias)
    short = executor.add_constant(as_bytes(np.zeros(4, np.float32)))
    with pytest.raises(ValueError, match="a choice bias has 16 bytes where 20"):
        route(choice_bias=short)
    with pytest.raises(ValueError, match="a scale of shares has 16 bytes where 20"):
        route(share_scale=short)
    route()
    with pytest.raises(ValueError, match="of as many experts"):
        executor.append_expert_linear(fewer, None, x, ids, inner, "none")
    with pytest.raises(ValueError, match="chosen before"):
        executor.append_expert_linear(matrix, None, x, others, inner, "none")
    with pytest.raises(ValueError, match="differ in shape"):
        executor.append_expert_linear(matrix, None, x, ids, out, "none")
    for wrong in (x, scaled):
        with pytest.raises(ValueError, match="a row of output"):
            executor.append_expert_linear(matrix, None, x, ids, wrong, "none")
    for which, gate in ((gated, "none"), (matrix, "silu")):
        with pytest.raises(ValueError, match="needs an activation"):
            executor.append_expert_linear(which, None, x, ids, inner, gate)
    with pytest.raises(ValueError, match="not experts"):
        executor.append_linear(matrix, None, x, out, "none")
    with pytest.raises(ValueError, match="biases of experts has 20 bytes where 320"):
        executor.append_expert_linear(matrix, bias, x, ids, inner, "none")
    with pytest.raises(ValueError, match="a sum of experts"):
        executor.append_combine_experts(inner, few, x)
    with pytest.raises(ValueError, match="a sum of experts"):
        executor.append_combine_experts(inner, None, x)
    with pytest.raises(ValueError, match="differ in shape"):
        executor.append_scale_rows(x, few, out, False)
    for experts in (0, 2**16 + 1):
        with pytest.raises(ValueError, match="experts"):
            executor.add_matrix("float32", 16, COLUMNS, False, experts)
    rows = np.zeros((16, COLUMNS), np.float32)
    executor.pack_rows(matrix, 4 * 16, 16, as_bytes(rows))
    for first in (-16, 5 * 16, 8, HUGE):
        with pytest.raises(ValueError, match="outside its matrix"):
            executor.pack_rows(matrix, first, 16, as_bytes(rows))
    executor.append_expert_linear(matrix, None, x, ids, inner, "none")
    executor.append_scale_rows(inner, shares, inner, True)
    assert executor.op_names == ["Route", "ExpertLinear", "ScaleRows"]


@pytest.mark.parametrize("rows", ["0T", "-1T", "65537T", "2", "T2", "2X", "99999999999999999999T"])
def test_rows_of_buffers_have_names(executor: Any, rows: str) -> None:
    with pytest.raises(ValueError, match="rows"):
        executor.add_buffer(0, "float32", 16, 64, rows)
