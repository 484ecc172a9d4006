"""Whole models of 2:4 sparse matrices on the GPU's kernels, which hold no zeros: equal to the
reference within rounding, and to themselves exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import tiny_checkpoint
from support.tiny_plans import Chunk, step_of, tokens_of

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.registry import BACKENDS, backend  # noqa: E402
from penstock.errors import WeightError  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.ops import ExpertLinear, Linear  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.quant import GroupScheme, Quantization  # noqa: E402
from penstock.quantize.forms.integers import Integers, Storage  # noqa: E402
from penstock.quantize.forms.sparse import PrunedStorage, Sparse24Storage  # noqa: E402
from penstock.quantize.grid import IntegerGrid  # noqa: E402
from penstock.quantize.methods import RoundToNearest  # noqa: E402
from penstock.quantize.pruning import Magnitude  # noqa: E402
from penstock.quantize.quantization import Quantization as Work  # noqa: E402
from penstock.quantize.run import quantize  # noqa: E402
from penstock.quantize.source import SourceModel  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402
from penstock.weights.model_folder import load_model_spec  # noqa: E402

LIMITS = Limits(num_blocks=8, max_tokens=24, max_logit_rows=24, max_sequences=4, threads=1)
A, B = tokens_of(1, 30), tokens_of(2, 20)
SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1}


def made(
    at: Path, bits: int, group: int | None, storage: Storage, symmetric: bool = True,
    kind: Any = Magnitude, family: str = "llama", **fields: Any,
) -> Path:  # fmt: skip
    source = SourceModel(tiny_checkpoint(family, **{**SHAPE, **fields}))
    grid = IntegerGrid(bits, group, symmetric, source.spec.dtype)
    quantize(Work(source, kind(Integers(grid, storage))), at, backend("reference").bind, 1)
    return at


def plan_of(folder: Path, rounded: bool = False) -> Plan:
    """As the cuda backend has it; ``rounded``: activations, too."""
    spec = load_model_spec(folder)
    assert spec.quantized is not None
    formats = BACKENDS["cuda"].block_formats | BACKENDS["cuda"].sparse_formats()
    spec = replace(spec, quantized=spec.quantized.limited(formats, rounded=False))
    return lower(spec, "float32", quantization=Quantization(activations=rounded))


def schemes(plan: Plan) -> set[object]:
    return {op.scheme for op in plan.ops if isinstance(op, Linear) and op.scheme is not None}


@pytest.mark.parametrize(
    ("bits", "group", "storage"),
    [
        (4, 64, PrunedStorage()),
        pytest.param(8, None, Sparse24Storage(), marks=pytest.mark.slow),
        pytest.param(8, 64, PrunedStorage(), marks=pytest.mark.slow),
        pytest.param(2, None, PrunedStorage(), marks=pytest.mark.slow),
    ],
)
def test_a_model_computes_what_the_reference_does(
    bits: int, group: int | None, storage: Storage, tmp_path: Path, device: Any
) -> None:
    """And the same bits in whichever company, and however a prompt is cut."""
    folder = made(tmp_path / "out", bits, group, storage)
    plan = fuse(plan_of(folder))
    (scheme,) = schemes(plan)
    assert scheme == GroupScheme(4 if bits == 2 else bits, group, sparse=True)  # type: ignore[arg-type]
    assert BACKENDS["cuda"].obstacle(plan) is None
    weights = open_weights(folder, plan.spec, plan.weights, "float32")
    step = step_of([Chunk(A, 0, 3, [5, 2], rows=range(3))])
    expected = ReferenceExecutor(plan, weights, LIMITS).run(step).logits
    executor = bind(plan, weights, LIMITS, device)
    whole = executor.run(step).logits.copy()
    assert np.square(whole - expected).mean() / np.square(expected).mean() < 1e-8
    parts = []
    for first, end in ((0, 1), (1, 3)):
        mine = Chunk(A, first, end, [6, 3], rows=range(first, end))
        parts.append(executor.run(step_of([Chunk(B, 0, 2, [7]), mine])).logits[1:].copy())
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    executor.close()


def test_what_no_kernel_multiplies_keeps_its_zeros(tmp_path: Path) -> None:
    """Groups of 32, zero points, and products that round what they multiply."""
    small = made(tmp_path / "small", 4, 32, PrunedStorage())
    points = made(tmp_path / "points", 4, 64, PrunedStorage(), symmetric=False)
    fits = made(tmp_path / "fits", 8, 64, PrunedStorage())
    for plan in (plan_of(small), plan_of(points), plan_of(fits, rounded=True)):
        assert not any(isinstance(each, GroupScheme) and each.sparse for each in schemes(plan))
    assert schemes(plan_of(fits, rounded=True)) == {GroupScheme(8, 64, zero_points=True)}


def test_experts_keep_their_zeros(tmp_path: Path) -> None:
    folder = made(
        tmp_path / "out", 4, 64, PrunedStorage(), family="qwen3_moe", moe_intermediate_size=64
    )
    plan = plan_of(folder)
    of_experts = {op.scheme for op in plan.ops if isinstance(op, ExpertLinear)}
    assert of_experts == {GroupScheme(4, 64)}
    assert schemes(plan) == {GroupScheme(4, 64, sparse=True)}


def test_what_is_not_sparse_is_refused(tmp_path: Path, device: Any) -> None:
    folder = made(tmp_path / "out", 4, 64, PrunedStorage(), kind=RoundToNearest)
    plan = fuse(plan_of(folder))
    weights = open_weights(folder, plan.spec, plan.weights, "float32")
    with pytest.raises(WeightError, match="more than two weights in four columns, but config"):
        bind(plan, weights, LIMITS, device)
