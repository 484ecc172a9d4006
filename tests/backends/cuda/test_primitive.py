"""Primitive ops as kernels of their own, beside NumPy's; and plans of them."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.cuda_cache import values_in  # noqa: E402
from support.rare_plans import PlanWeights, Rare, fuse_apart, ops_of_dense_models, rare  # noqa: E402
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.binder import Binder  # noqa: E402
from penstock.backends.cuda.cache import allocate  # noqa: E402
from penstock.backends.cuda.kernels import combine, heads, latents, norm, xielu  # noqa: E402
from penstock.backends.cuda.kernels import positions as position_kernels  # noqa: E402
from penstock.backends.cuda.pages import LATENT_TYPES  # noqa: E402
from penstock.backends.reference import numerics  # noqa: E402
from penstock.backends.reference.cache import KvStore, LatentStore, layer_stores  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.models.position_scale import PositionScale  # noqa: E402
from penstock.plan import ops  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import KvLayer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

ROWS = 7


def draw(cols: int, seed: int = 0, rows: int = ROWS) -> Any:
    rng = np.random.default_rng(seed + cols)
    return (2 * rng.standard_normal((rows, cols))).astype(np.float32)


def put(x: Any, device: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).to(device)


def wide(x: Any, device: Any) -> Any:
    """Rows further apart than they are long, as in the arena."""
    rows, cols = x.shape
    array = torch.full((rows, cols + 5), float("nan"), device=device)[:, :cols]
    array.copy_(torch.from_numpy(x))
    return array


def check(run: Any, x: Any, expected: Any, device: Any, tolerance: float = 3e-6) -> None:
    """``run(x, out)`` gives what is expected, rounded too, in place, and row by row."""
    out = torch.full_like(wide(x, device), float("nan"))
    run(wide(x, device), out, slice(None))
    got = out.cpu().numpy()
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
    rounded = torch.empty(x.shape, dtype=torch.bfloat16, device=device)
    run(wide(x, device), rounded, slice(None))
    np.testing.assert_array_equal(rounded.float().cpu().numpy(), numerics.as_bfloat16(got))
    same = wide(x, device)
    run(same, same, slice(None))
    np.testing.assert_array_equal(same.cpu().numpy(), got)
    alone = wide(x[2:3], device)
    run(alone, alone, slice(2, 3))
    np.testing.assert_array_equal(alone.cpu().numpy(), got[2:3])
    nothing = wide(x, device)[:0]
    run(nothing, nothing, slice(0, 0))


@pytest.mark.parametrize("cols", [1, 72, 1025])
@pytest.mark.parametrize("kind", ["rms", "layer", "layer with bias"])
@pytest.mark.parametrize("weighted", [True, False])
def test_norms(kind: str, weighted: bool, cols: int, device: Any) -> None:
    x, (some, bias) = draw(cols), draw(cols, 1, 2)
    weight = some if weighted else None
    by, added = put(some, device) if weighted else None, put(bias, device)
    if kind == "rms":
        check(
            lambda x, out, _: norm.rms_norm(x, by, out, 1e-5),
            x,
            numerics.rms_norm(x, weight, 1e-5),
            device,
        )
        return
    x += 20  # the variance is of differences from the mean
    used = bias if kind == "layer with bias" else None
    check(
        lambda x, out, _: norm.layer_norm(x, by, None if used is None else added, out, 1e-5),
        x,
        numerics.layer_norm(x.astype(np.float64), weight, used, 1e-5),
        device,
        3e-5,
    )


@pytest.mark.parametrize(("count", "dim"), [(1, 8), (3, 50), (5, 64)])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("weights", ["none", "one", "each"])
def test_head_norm(weights: str, centered: bool, count: int, dim: int, device: Any) -> None:
    x = draw(count * dim)
    if centered:
        x += 20  # the variance is of differences from the mean
    weight = bias = None
    if weights != "none":
        weight, bias = (draw(count * dim, seed, 1).reshape(count, dim) for seed in (1, 2))
        if weights == "one":
            weight, bias = weight[0], bias[0]
    parts = x.reshape(ROWS, count, dim)
    if centered:
        expected = numerics.layer_norm(parts.astype(np.float64), weight, bias, 1e-6)
    else:
        expected, bias = numerics.rms_norm(parts, weight, 1e-6), None
    by, added = (None if each is None else put(each, device) for each in (weight, bias))
    check(
        lambda x, out, _: heads.head_norm(x, by, out, 1e-6, dim, added, centered),
        x,
        expected.reshape(x.shape),
        device,
        3e-5 if centered else 3e-6,
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("count", "dim", "turned"), [(3, 8, 8), (2, 50, 50), (2, 20, 8), (1, 8, 0)]
)
def test_rope(count: int, dim: int, turned: int, interleaved: bool, device: Any) -> None:
    x = draw(count * dim)
    rng = np.random.default_rng(1)
    positions = rng.integers(0, 80, ROWS).astype(np.int32)
    angles = rng.uniform(0, 6, (80, turned // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected = numerics.rotate(
        x.reshape(ROWS, count, dim), cos[positions], sin[positions], interleaved
    )
    tables, places = (put(cos, device), put(sin, device)), put(positions, device)
    check(
        lambda x, out, rows: heads.rope(x, places[rows], tables, interleaved, dim, out),
        x,
        expected.reshape(x.shape),
        device,
    )


@pytest.mark.thinned(5)
@pytest.mark.parametrize("cols", [1, 72, 1500])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "identity"])
def test_gate(activation: Any, cols: int, device: Any) -> None:
    x, up = draw(cols), draw(cols, 1)
    by = put(up, device)
    check(
        lambda x, out, rows: combine.gate(x, by[rows], out, activation),
        x,
        numerics.activate(x, activation) * up,
        device,
        1e-5,
    )


@pytest.mark.parametrize("cols", [1, 72, 1500])
def test_scale_and_soft_cap(cols: int, device: Any) -> None:
    x = 20 * draw(cols)
    scaled, capped = x * np.float32(0.3), 30 * np.tanh(x.astype(np.float64) / 30)
    check(lambda x, out, _: combine.scale(x, out, 0.3), x, scaled, device)
    check(lambda x, out, _: combine.soft_cap(x, out, 30.0), x, capped, device)


def test_soft_cap_at_its_edges(device: Any) -> None:
    x = torch.tensor([[0.0, 1e-20, float("inf"), -float("inf"), float("nan"), 1e38]]).to(device)
    out = torch.empty_like(x)
    combine.soft_cap(x, out, 30.0)
    expected = np.float32([[0, 1e-20, 30, -30, np.nan, 30]])
    np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("cols", [1, 72, 1500])
def test_clamp(cols: int, device: Any) -> None:
    x = 20 * draw(cols)
    check(lambda x, out, _: combine.clamp(x, out, 7.5), x, np.clip(x, -7.5, 7.5), device)


def test_clamp_at_its_edges(device: Any) -> None:
    x = torch.tensor([[0.0, 2.0, -2.0, float("inf"), -float("inf"), float("nan")]]).to(device)
    for limit, expected in ((2.0, [0, 2, -2, 2, -2, np.nan]), (0.0, [0, 0, 0, 0, 0, np.nan])):
        out = torch.empty_like(x)
        combine.clamp(x, out, limit)
        np.testing.assert_array_equal(out.cpu().numpy(), np.float32([expected]))


def exact_xielu(x: Any, p: float, n: float, beta: float, eps: float) -> Any:
    x = x.astype(np.float64)
    rising, falling = np.logaddexp(0, p), beta + np.logaddexp(0, n)
    below = (np.expm1(np.minimum(x, eps)) - x) * falling + beta * x
    return np.where(x > 0, rising * x * x + beta * x, below)


@pytest.mark.parametrize("cols", [1, 72, 1500])
@pytest.mark.parametrize(
    "parameters", [(0.2, 0.2, 0.5, -1e-6), (-9.0, -16.0, 0.0, -0.3), (30.0, 4.0, 1.5, 0.25)]
)
def test_xielu(parameters: tuple[float, float, float, float], cols: int, device: Any) -> None:
    weights = [torch.tensor([each], dtype=torch.float32, device=device) for each in parameters]
    held = [float(each) for each in weights]
    x = draw(cols)
    expected = exact_xielu(x, *held)
    check(lambda x, out, _: xielu.xielu(x, *weights, out), x, expected, device, 2e-6)


def test_xielu_at_its_edges(device: Any) -> None:
    """Near zero the term below it is half the square, of which float32 keeps all digits."""
    weights = [torch.tensor([each], device=device) for each in (0.8, 0.8, 0.0, -1e-6)]
    values = [[-1e-3, -0.4999, -0.5001, -20.0, 0.0, 1e-3, float("nan"), 1e18]]
    x = np.float32(values)
    out = torch.empty(1, 8, device=device)
    xielu.xielu(put(x, device), *weights, out)
    expected = exact_xielu(x, *(float(each) for each in weights))
    np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("cols", [1, 72, 1500])
def test_what_positions_add_and_multiply(cols: int, device: Any) -> None:
    x, table = draw(cols), draw(cols, 1, 50)
    positions = np.array([0, 3, 46, 7, 3, 1, 47], np.int32)
    places, rows = put(positions, device), put(table, device)
    check(
        lambda x, out, some: position_kernels.add_positions(x, places[some], rows, 2, out),
        x,
        x + table[positions + 2],
        device,
    )
    scale = PositionScale(0.3, 8, 5)
    factors = scale.factors(48)
    by = put(factors, device)
    check(
        lambda x, out, some: position_kernels.scale_by_position(x, places[some], by, 5, 8, out),
        x,
        x * factors[(positions + 5) // 8][:, None],
        device,
    )


@pytest.mark.parametrize("kv", LATENT_TYPES)
@pytest.mark.parametrize(("latent", "behind"), [(40, 8), (3, 50)])
def test_latents_are_written(latent: int, behind: int, kv: KvDType, device: Any) -> None:
    slots = np.array([40, 95, 0, -1, 33], np.int32)
    x = draw(latent + behind, 0, 5)
    (cache,) = allocate([KvLayer(1, latent + behind, value_dim=latent)], kv, 3, device)
    before = [array.clone() for array in cache.arrays]
    latents.write_latents(wide(x[3:4], device), cache, put(slots[3:4], device))
    for array, was in zip(cache.arrays, before, strict=True):
        assert torch.equal(array, was)
    latents.write_latents(wide(x, device), cache, put(slots, device))
    store = LatentStore(kv, 3, latent + behind, latent)
    real = slots >= 0
    store.write(slots[real], x[real][:, None])
    rows = cache.rows.float().cpu().numpy().reshape(96, latent + behind)
    if kv == "int8":
        for scales, columns in (
            (cache.latent_scales, slice(0, latent)),
            (cache.key_scales, slice(latent, None)),
        ):
            rows[:, columns] *= scales.float().cpu().numpy().reshape(96, 1)
    np.testing.assert_array_equal(rows, store.read(np.arange(96))[:, 0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_heads_are_put_together(dtype: str, device: Any) -> None:
    x, y = draw(3 * 40), draw(3 * 7, 1)
    expected = np.concatenate(
        [part for h in range(3) for part in (x[:, 40 * h : 40 * h + 40], y[:, 7 * h : 7 * h + 7])],
        axis=1,
    )
    out = torch.full((ROWS, 150), -1.0, dtype=getattr(torch, dtype), device=device)
    latents.put_in_heads(wide(x, device), out[:, :141], 3, 0)
    latents.put_in_heads(put(y, device).bfloat16(), out[:, :141], 3, 40)
    expected[:, np.arange(141) % 47 >= 40] = numerics.as_bfloat16(y)
    if dtype == "bfloat16":
        expected = numerics.as_bfloat16(expected)
    np.testing.assert_array_equal(out[:, :141].float().cpu().numpy(), expected)
    assert bool((out[:, 141:] == -1).all())


@pytest.mark.parametrize("kv", get_args(KvDType))
@pytest.mark.parametrize("dim", [16, 50])
def test_kv_write(dim: int, kv: KvDType, device: Any) -> None:
    slots = np.array([40, 95, 0, -1, 33], np.int32)
    k, v = draw(2 * dim, 0, 5), draw(2 * dim, 1, 5)
    (cache,) = allocate([KvLayer(2, dim)], kv, 3, device)
    heads.kv_write(wide(k, device), wide(v, device), cache, put(slots, device))
    real = slots >= 0
    pairs = ((cache.keys, cache.key_scales, k), (cache.values, cache.value_scales, v))
    for store, (data, scales, x) in zip(layer_stores(KvLayer(2, dim), kv, 3), pairs, strict=True):
        assert isinstance(store, KvStore)
        store.write(slots[real], x[real].reshape(-1, 2, dim))
        wanted = store.data.reshape(3, BLOCK_SIZE, 2, dim).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(values_in(data), wanted.astype(np.float32))
        if scales is not None:
            by = store.scales.reshape(3, BLOCK_SIZE, 2).transpose(0, 2, 1)
            np.testing.assert_array_equal(scales.float().cpu().numpy(), by.astype(np.float32))


def test_every_op_of_a_plan_can_be_appended() -> None:
    assert set(Binder._APPEND) >= ops_of_dense_models() - {ops.ShortConv}  # (pages.py)


A, C = tokens_of(1, 40), tokens_of(3, 8)
LIMITS = Limits(num_blocks=8, max_tokens=48, max_logit_rows=48, max_sequences=4, threads=1)
EVERYTHING = Rare(
    layer_norm=True,
    embedding_factor=3.5,
    logit_cap=1.5,
    interleaved=True,
    softcap=2.0,
    slopes=True,
    sinks=True,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "wanted", "options"),
    [
        ("float32", Rare(), {"qk_norm": True}),
        ("float32", EVERYTHING, {"rope_dim": 8, "bias": True}),
        ("bfloat16", EVERYTHING, {"qk_norm": True, "window": 9}),
    ],
)
def test_a_primitive_plan_agrees_with_the_reference(
    dtype: Any, wanted: Rare, options: dict[str, Any], device: Any
) -> None:
    """And with itself however much of it is fused, to the bit where it sums alike."""
    plan = rare(lower(make_spec(**options), dtype), wanted)
    weights = PlanWeights(plan)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    executors = [
        bind(each, weights, LIMITS, device)
        for each in (plan, fuse(plan), fuse_apart(plan, range(1, 100, 3)))
    ]
    tolerance = {"float32": 3e-5, "bfloat16": 6e-2}[dtype]
    for step in (
        step_of([Chunk(A, 0, 35, [5, 2]), Chunk(C, 0, 4, [1], rows=[1, 3])]),
        step_of([Chunk(C, 4, 5, [1]), Chunk(A, 35, 36, [5, 2])]),
    ):
        expected = reference.run(step).logits
        for executor in executors:
            got = executor.run(step).logits
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    for executor in executors:
        executor.close()
