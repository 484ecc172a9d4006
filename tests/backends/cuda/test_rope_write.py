"""QK-norm, rotation and the cache write, beside the reference backend's."""

from __future__ import annotations

from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.cuda_cache import values_in  # noqa: E402

from penstock.backends.cuda.cache import LayerCache, allocate  # noqa: E402
from penstock.backends.cuda.kernels.rope_write import rope_write  # noqa: E402
from penstock.backends.reference.cache import KvStore, layer_stores  # noqa: E402
from penstock.backends.reference.numerics import as_bfloat16, rms_norm, rotate  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType, part_dtypes  # noqa: E402
from penstock.plan.kv_groups import KvLayer  # noqa: E402

BLOCKS = 3
SLOTS = np.array([40, 95, 0, -1, 33], np.int32)
POSITIONS = np.array([8, 0, 70, 5, 1], np.int32)


def make_layer(kv_dtype: KvDType, kv_heads: int, dim: int, device: Any) -> LayerCache:
    (layer,) = allocate([KvLayer(kv_heads, dim)], kv_dtype, BLOCKS, device)
    assert isinstance(layer, LayerCache)
    return layer


def case(heads: int, kv_heads: int, dim: int, rope: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    qkv = rng.standard_normal((len(SLOTS), heads + 2 * kv_heads, dim)).astype(np.float32)
    angles = rng.uniform(0, 6, (80, rope // 2))
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    norms = rng.standard_normal((2, dim)).astype(np.float32)
    return qkv, tables, norms


def run(qkv: Any, tables: Any, norms: Any, layer: LayerCache, heads: int, q_type: Any) -> Any:
    device = layer.keys.device
    put = lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device)  # noqa: E731
    dim = qkv.shape[2]
    q = torch.zeros(len(qkv), heads * dim + 8, dtype=q_type, device=device)[:, : heads * dim]
    rope_write(
        put(qkv.reshape(len(qkv), -1)),
        q,
        layer,
        put(POSITIONS[: len(qkv)]),
        put(SLOTS[: len(qkv)]),
        (put(tables[0]), put(tables[1])),
        None if norms is None else (put(norms[0]), put(norms[1])),
        1e-5,
    )
    return q


def expected_of(qkv: Any, tables: Any, norms: Any, heads: int, kv_heads: int) -> Any:
    q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], 1e-5), rms_norm(k, norms[1], 1e-5)
    cos, sin = (table[POSITIONS] for table in tables)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kv_dtype", get_args(KvDType))
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "rope"),
    [(6, 2, 16, 16), (1, 1, 50, 50), (4, 4, 20, 8), (3, 1, 64, 64)],
)
def test_against_the_reference(
    heads: int, kv_heads: int, dim: int, rope: int, normed: bool, kv_dtype: KvDType, device: Any
) -> None:
    qkv, tables, norms = case(heads, kv_heads, dim, rope)
    used = norms if normed else None
    layer = make_layer(kv_dtype, kv_heads, dim, device)
    q = run(qkv, tables, used, layer, heads, torch.float32)
    q_expected, k_expected, v_expected = expected_of(qkv, tables, used, heads, kv_heads)
    np.testing.assert_allclose(values_in(q).reshape(q_expected.shape), q_expected, atol=3e-6)
    rounded = run(qkv, tables, used, layer, heads, torch.bfloat16)
    same = values_in(rounded).reshape(q_expected.shape) == as_bfloat16(q_expected)
    assert same.mean() > 0.97

    real = SLOTS >= 0
    for part, store, data, scales, expected in zip(
        part_dtypes(kv_dtype),
        layer_stores(KvLayer(kv_heads, dim), kv_dtype, BLOCKS),
        (layer.keys, layer.values),
        (layer.key_scales, layer.value_scales),
        (k_expected, v_expected),
        strict=True,
    ):
        assert isinstance(store, KvStore)
        store.write(SLOTS[real], expected[real])
        wanted = store.data.reshape(BLOCKS, BLOCK_SIZE, kv_heads, dim).transpose(0, 2, 1, 3)
        got = values_in(data)
        if expected is v_expected or not normed:  # then every bit is decided
            np.testing.assert_array_equal(got, wanted.astype(got.dtype))
        else:
            error = np.abs(got - wanted.astype(np.float32))
            assert (
                error.max()
                <= {
                    "int8": 1,
                    "int4": 1,
                    "fp8": 32,
                    "float32": 3e-6,
                    "float16": 4e-3,
                    "bfloat16": 4e-2,
                }[part]
            )
            assert np.mean(error > 1e-5) < 0.02
        if scales is not None and (expected is v_expected or not normed):
            wanted_scales = store.scales.reshape(BLOCKS, BLOCK_SIZE, kv_heads).transpose(0, 2, 1)
            np.testing.assert_array_equal(values_in(scales), wanted_scales.astype(np.float32))


def test_a_token_is_written_alone(device: Any) -> None:
    qkv, tables, norms = case(6, 2, 16, 16)
    whole, single = (make_layer("bfloat16", 2, 16, device) for _ in range(2))
    q = run(qkv, tables, norms, whole, 6, torch.float32)
    first = run(qkv[:1], tables, norms, single, 6, torch.float32)
    assert torch.equal(q[:1], first)
    block, offset = divmod(int(SLOTS[0]), BLOCK_SIZE)
    assert torch.equal(whole.keys[block, :, offset], single.keys[block, :, offset])


def test_an_int8_cache_reports_what_is_not_finite(device: Any) -> None:
    qkv, tables, _ = case(1, 1, 16, 16)
    qkv[0, 1, 3] = np.nan  # a key
    qkv[1, 2, 5] = np.inf  # a value
    qkv[2, 1:] = 0
    layer = make_layer("int8", 1, 16, device)
    run(qkv, tables, None, layer, 1, torch.float32)
    keys, values = layer.key_scales.reshape(-1), layer.value_scales.reshape(-1)
    assert keys[40].isnan()
    assert not values[40].isnan()
    assert values[95].isnan()
    assert not layer.values[2, 0, 31].any()
    assert (float(keys[0]), float(values[0])) == (0.0, 0.0)
    # bfloat16 scales, rounded to nearest as ml_dtypes does
    most = np.abs(qkv[0, 2]).max() / np.float32(127)
    assert float(values[40]) == float(most.astype(ml_dtypes.bfloat16))
