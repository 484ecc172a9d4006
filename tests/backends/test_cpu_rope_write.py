"""Native rope_write against NumPy: queries, and what it puts into the cache and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from support.native_cache import ELEMENTS, F32, SCALED, Cache, Shape, elements_of, fitted

from penstock.cache.geometry import BLOCK_SIZE

pytestmark = pytest.mark.thinned(5)


@dataclass(frozen=True)
class Rope:
    cos: F32  # [positions, dim / 2]
    sin: F32


def rope(positions: int, dim: int) -> Rope:
    inverse = 10000.0 ** (-np.arange(0, dim, 2) / max(dim, 1))
    angles = np.arange(positions)[:, None] * inverse
    return Rope(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))


def expected_heads(
    x: F32, weight: F32 | None, positions: NDArray[np.int32], tables: Rope
) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    if weight is not None:
        y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-6) * weight
    half = tables.cos.shape[1]
    c, s = tables.cos[positions][:, None], tables.sin[positions][:, None]
    a, b = y[..., :half], y[..., half : 2 * half]
    return np.concatenate([a * c - b * s, b * c + a * s, y[..., 2 * half :]], axis=-1)


def codes_of(tiles: NDArray[np.int8], element: str) -> NDArray[np.int32]:
    """The codes in these bytes."""
    if element in ("int8", "fp8"):  # the bits of neighbouring floats are neighbours
        return tiles.astype(np.int32)
    return np.stack([(tiles << 4) >> 4, tiles >> 4]).astype(np.int32)


def slots_of(kind: str, tokens: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Places for tokens in five blocks: anywhere; side by side; side by side in two blocks that do
    not follow each other, in the first from a token that is no multiple of eight on."""
    if kind == "anywhere":
        return rng.permutation(5 * BLOCK_SIZE)[:tokens].astype(np.int32)
    if kind == "side by side":
        return np.arange(tokens, dtype=np.int32)
    first = np.arange(BLOCK_SIZE - 19, BLOCK_SIZE, dtype=np.int32)
    second = np.arange(tokens - 19, dtype=np.int32)
    return np.concatenate([BLOCK_SIZE * 3 + first, BLOCK_SIZE + second])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("places", ["anywhere", "side by side", "two blocks"])
@pytest.mark.parametrize(
    ("head_dim", "rope_dim"),
    [(8, 8), (64, 64), (80, 80), (80, 32), (96, 20), (128, 128), (64, 0), (322, 64), (512, 512)],
)
def test_rope_write(
    module: Any, head_dim: int, rope_dim: int, places: str, norm: bool, element: str
) -> None:
    head_dim = fitted(head_dim, element)
    shape = Shape(6, 2, head_dim, element)
    rng = np.random.default_rng(head_dim + rope_dim)
    tokens, blocks = 45, 5
    qkv = rng.standard_normal((tokens, 10, head_dim), dtype=np.float32)
    slots = slots_of(places, tokens, rng)
    positions = rng.integers(0, 200, tokens).astype(np.int32)
    tables = rope(200, rope_dim)
    weights = [rng.uniform(0.5, 2, head_dim).astype(np.float32) if norm else None for _ in "qk"]
    results = []
    for threads in (1, 2, 3):
        cache = Cache(shape, blocks)
        wide = element == "float32"
        q = np.empty((tokens, 6 * head_dim), np.float32 if wide else np.uint16)
        module.rope_write(
            qkv.reshape(tokens, -1),
            q,
            cache.bytes,
            element,
            heads=6,
            kv_heads=2,
            cos=tables.cos,
            sin=tables.sin,
            q_norm=weights[0],
            k_norm=weights[1],
            eps=1e-6,
            positions=positions,
            slots=slots,
            threads=threads,
        )
        results.append((q.tobytes(), cache.bytes.tobytes()))
    assert results[0] == results[1] == results[2]

    queries = q if wide else q.view(ml_dtypes.bfloat16).astype(np.float32)
    keys = expected_heads(qkv[:, 6:8], weights[1], positions, tables)
    expected = Cache(shape, blocks)
    for t in range(tokens):
        expected.write(int(slots[t]), keys[t].astype(np.float32), qkv[t, 8:])
    ulp = {
        "float32": 2.0**-22,
        "bfloat16": 2.0**-8,
        "float16": 2.0**-10,
        "int8": 2.0**-8,
        "int4": 2.0**-8,
        "k8v4": 2.0**-8,
        "fp8": 2.0**-8,
    }
    np.testing.assert_allclose(
        queries.reshape(tokens, 6, head_dim),
        expected_heads(qkv[:, :6], weights[0], positions, tables),
        rtol=ulp["float32" if wide else "bfloat16"],
        atol=1e-6,
    )
    # NaN must stand where NaN stands: nothing is written but the tokens' slots.
    if element in SCALED:
        # Keys are computed twice here, and on the border of two codes either may be chosen.
        keys_in, _ = elements_of(element)
        codes, wanted = (codes_of(c.tiles[0], keys_in) for c in (cache, expected))
        assert np.abs(codes - wanted).max() <= 1
        assert np.mean(codes != wanted) < 0.01
        np.testing.assert_array_equal(cache.tiles[1], expected.tiles[1])
        np.testing.assert_allclose(
            cache.scales[0].astype(np.float32),
            expected.scales[0].astype(np.float32),
            rtol=2 * ulp[element],
        )
        np.testing.assert_array_equal(
            cache.scales[1].view(np.uint16), expected.scales[1].view(np.uint16)
        )
        return
    np.testing.assert_allclose(
        cache.tiles[0].astype(np.float32),
        expected.tiles[0].astype(np.float32),
        rtol=2 * ulp[element],  # two roundings of almost the same number
        atol=1e-6,
    )
    np.testing.assert_array_equal(cache.tiles[1].view(np.uint8), expected.tiles[1].view(np.uint8))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rope_write_marks_what_is_not_finite(module: Any, bad: float) -> None:
    """The scale of such a head is NaN and its codes zeros; its neighbours are as ever."""
    shape = Shape(2, 2, 32, "int8")
    x = np.random.default_rng(1).standard_normal((3, 6, 32), dtype=np.float32)
    x[1, 4, 7] = bad  # token 1, value head 0
    x[2, 5] = 0  # token 2, value head 1
    cache = Cache(shape, 1)
    tables = rope(3, 32)
    module.rope_write(
        x.reshape(3, -1),
        np.empty((3, 64), np.float32),
        cache.bytes,
        "int8",
        heads=2,
        kv_heads=2,
        cos=tables.cos,
        sin=tables.sin,
        q_norm=None,
        k_norm=None,
        eps=1e-6,
        positions=np.arange(3, dtype=np.int32),
        slots=np.arange(3, dtype=np.int32),
        threads=1,
    )
    expected = Cache(shape, 1)
    for t in range(3):
        expected.write(t, x[t, 2:4], x[t, 4:])
    np.testing.assert_array_equal(cache.tiles[1], expected.tiles[1])
    scales = cache.scales[1][0, :, :3].astype(np.float32)
    assert np.isnan(scales[0, 1])
    assert scales[1, 2] == 0
    assert np.isfinite(np.delete(scales.ravel(), 1)).all()
