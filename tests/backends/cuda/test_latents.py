"""Plans whose attention is over latents: beside the reference, and bitwise themselves."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.latents import LATENT, over_latents  # noqa: E402
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.head_matrix import HeadMatrix  # noqa: E402
from penstock.backends.cuda.memory import needs  # noqa: E402
from penstock.backends.cuda.workspace import Workspace  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.reference.numerics import as_bfloat16  # noqa: E402
from penstock.backends.registry import backend as named  # noqa: E402
from penstock.cache.geometry import KvDType  # noqa: E402
from penstock.errors import ConfigError  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.models.spec import DType  # noqa: E402
from penstock.plan import ops  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

LIMITS = Limits(num_blocks=40, max_tokens=48, max_logit_rows=48, max_sequences=4, threads=1)
SPEC = over_latents(replace(make_spec(), layers=make_spec().layers[:1]))
A, C = tokens_of(1, 60), tokens_of(3, 8)
A_BLOCKS = [7, 39]


def make_plan(dtype: DType, kv_dtype: KvDType | None = None) -> Plan:
    return fuse(lower(SPEC, dtype, kv_dtype=kv_dtype))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        ("float32", "float32", 3e-5),
        ("bfloat16", "bfloat16", 6e-2),
        ("float16", "float16", 1e-2),
        ("bfloat16", "int8", 6e-2),
    ],
)
def test_logits_agree_with_the_reference(
    dtype: DType, kv_dtype: KvDType, tolerance: float, device: Any
) -> None:
    plan, weights = make_plan(dtype, kv_dtype), dummy_weights(SPEC, 3, dtype)
    executor = bind(plan, weights, LIMITS, device)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    for step in (
        step_of([Chunk(A, 0, 31, A_BLOCKS), Chunk(C, 0, 5, [2], rows=[1, 4])]),
        step_of([Chunk(C, 5, 6, [2]), Chunk(A, 31, 40, A_BLOCKS)]),
        step_of([Chunk(A, 40, 41, [7, 21]), Chunk(C, 6, 7, [2])], [(39, 21)]),
    ):
        expected, got = reference.run(step).logits, executor.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kv_dtype"), [("bfloat16", "bfloat16"), ("float32", "int8")])
def test_neither_company_nor_chunking_changes_a_bit(
    dtype: DType, kv_dtype: KvDType, device: Any
) -> None:
    """Nor a padded step, as graphs run it."""
    plan, weights = make_plan(dtype, kv_dtype), dummy_weights(SPEC, 3, dtype)
    executor = bind(plan, weights, LIMITS, device)
    executor.run(step_of([Chunk(A, 0, 33, A_BLOCKS)]))
    alone = executor.run(step_of([Chunk(A, 33, 34, A_BLOCKS)])).logits.copy()
    executor.run(step_of([Chunk(C, 0, 5, [2])]))
    whole = step_of([Chunk(C, 5, 7, [2]), Chunk(A, 0, 34, [1, 3], rows=[33])])
    np.testing.assert_array_equal(executor.run(whole).logits[1:], alone)
    decode = step_of([Chunk(A, 33, 34, A_BLOCKS), Chunk(C, 7, 8, [2])])
    together = executor.run(decode).logits.copy()
    np.testing.assert_array_equal(together[:1], alone)
    assert executor._program is not None
    padded = executor._program.run(executor._write_padded(decode, Bucket(4, 4)))
    np.testing.assert_array_equal(padded.logits[:2].cpu().numpy(), together)
    executor.close()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("heads", "k", "n"), [(5, 24, 40), (2, 130, 70), (1, 1, 3)])
def test_products_of_heads(heads: int, k: int, n: int, transposed: bool, device: Any) -> None:
    rng = np.random.default_rng(heads * k)
    matrices = as_bfloat16(rng.standard_normal((heads, n, k), np.float32) / np.sqrt(k))
    x = as_bfloat16(rng.standard_normal((37, heads * k), np.float32))
    expected = np.einsum("rhk,hnk->rhn", x.reshape(37, heads, k), matrices).reshape(37, -1)
    stored = matrices.transpose(0, 2, 1) if transposed else matrices
    weight = torch.from_numpy(np.ascontiguousarray(stored)).reshape(-1, stored.shape[2]).to(device)
    op = ops.HeadLinear("x", "out", "w", heads, k, n, transposed)
    for dtype in (torch.bfloat16, torch.float32):
        matrix = HeadMatrix(op, 37, "bfloat16", Workspace(device), dtype)
        matrix.fill(weight)
        wide = torch.zeros(37, heads * k + 5, dtype=dtype, device=device)[:, : heads * k]
        wide.copy_(torch.from_numpy(x))
        out = torch.full((37, heads * n + 3), -1.0, device=device)
        matrix.product(wide, out[:, : heads * n])
        got = out.cpu().numpy()
        np.testing.assert_allclose(got[:, : heads * n], expected, rtol=0, atol=2e-5)
        assert (got[:, heads * n :] == -1).all()
        alone = torch.empty(1, heads * n, device=device)
        matrix.product(wide[36:], alone)
        np.testing.assert_array_equal(alone.cpu().numpy()[0], got[36, : heads * n])


def test_what_is_reckoned_is_what_binding_allocates(device: Any) -> None:
    """The weights of heads are counted as wide as they are kept, in the type of weights."""
    plan = make_plan("bfloat16")
    limits = replace(LIMITS, num_blocks=0)
    executor = bind(plan, dummy_weights(SPEC, 0, "bfloat16"), limits, device)
    gc.collect()
    heads = [x for x in gc.get_objects() if isinstance(x, HeadMatrix)]
    own = [matrix for matrix in heads if matrix.shape.max_rows == 48]
    expected = 2 * 128 * 5 * (LATENT.kv_rank + LATENT.v_dim)
    assert sum(matrix.nbytes for matrix in own) >= expected
    without = tuple(op for op in plan.ops if not isinstance(op, ops.HeadLinear))
    of_heads = needs(plan, limits).weights - needs(replace(plan, ops=without), limits).weights
    assert of_heads == expected
    executor.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kv_rank": 513}, "a latent of 513 is outside 1..512, which attention handles"),
        ({"rope_dim": 130}, "a rotated key of 130 beside latents is outside 1..128"),
    ],
)
def test_latents_that_no_kernel_reads_are_refused(changes: dict[str, int], why: str) -> None:
    spec = over_latents(make_spec(), latent=replace(LATENT, **changes))
    with pytest.raises(ConfigError, match=why):
        named("cuda").check_runnable(fuse(lower(spec)))
