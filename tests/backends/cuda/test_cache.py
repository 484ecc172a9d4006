"""The paged cache: its bytes and its types."""

from __future__ import annotations

from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.backends.cuda.cache import allocate  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType, is_coded, layer_block_bytes  # noqa: E402
from penstock.plan.plan import KvLayer  # noqa: E402


@pytest.mark.parametrize("kv", get_args(KvDType))
def test_bytes_are_those_of_the_geometry(kv: KvDType, device: Any) -> None:
    layers = [KvLayer(2, 64), KvLayer(1, 80)]
    for layer, cache in zip(layers, allocate(layers, kv, 5, device), strict=True):
        columns = layer.head_dim // (2 if kv == "int4" else 1)
        assert cache.keys.shape == (5, layer.kv_heads, BLOCK_SIZE, columns)
        nbytes = sum(array.nbytes for array in cache.arrays)
        assert nbytes == 5 * layer_block_bytes(kv, layer.kv_heads, layer.head_dim)
        assert (cache.key_scales is None) == (cache.value_scales is None) == (not is_coded(kv))
        assert all(not array.any() for array in cache.arrays)
