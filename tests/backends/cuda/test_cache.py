"""The paged cache: its bytes and its types."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.backends.cuda.cache import allocate  # noqa: E402
from penstock.backends.cuda.pages import KV_TYPES  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType, layer_block_bytes  # noqa: E402
from penstock.plan.plan import KvLayer  # noqa: E402


@pytest.mark.parametrize("kv", KV_TYPES)
def test_bytes_are_those_of_the_geometry(kv: KvDType, device: Any) -> None:
    layers = [KvLayer(2, 64), KvLayer(1, 80)]
    for layer, cache in zip(layers, allocate(layers, kv, 5, device), strict=True):
        assert cache.keys.shape == (5, layer.kv_heads, BLOCK_SIZE, layer.head_dim)
        nbytes = sum(array.nbytes for array in cache.arrays)
        assert nbytes == 5 * layer_block_bytes(kv, layer.kv_heads, layer.head_dim)
        assert (cache.key_scales is None) == (cache.value_scales is None) == (kv != "int8")
        assert all(not array.any() for array in cache.arrays)
