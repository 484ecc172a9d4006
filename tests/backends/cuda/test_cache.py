"""The paged cache: its bytes, its types and copies of blocks."""

from __future__ import annotations

from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from penstock.backends.cuda.cache import allocate, copy_blocks  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, KvDType, layer_block_bytes  # noqa: E402
from penstock.plan.plan import KvLayer  # noqa: E402


@pytest.mark.parametrize("kv", get_args(KvDType))
def test_bytes_are_those_of_the_geometry(kv: KvDType, device: Any) -> None:
    layers = [KvLayer(2, 64), KvLayer(1, 80)]
    for layer, cache in zip(layers, allocate(layers, kv, 5, device), strict=True):
        assert cache.keys.shape == (5, layer.kv_heads, BLOCK_SIZE, layer.head_dim)
        nbytes = sum(array.nbytes for array in cache.arrays)
        assert nbytes == 5 * layer_block_bytes(kv, layer.kv_heads, layer.head_dim)
        assert (cache.key_scales is None) == (cache.value_scales is None) == (kv != "int8")
        assert all(not array.any() for array in cache.arrays)


@pytest.mark.parametrize("kv", get_args(KvDType))
def test_copies_read_every_source_before_they_write(kv: KvDType, device: Any) -> None:
    caches = allocate([KvLayer(1, 16), KvLayer(2, 24)], kv, 4, device)
    for cache in caches:
        for array in cache.arrays:
            array += (
                torch.arange(1, 5, device=device).reshape(4, *[1] * (array.dim() - 1)).to(array)
            )
    copy_blocks(caches, torch.tensor([[0, 1], [1, 3]], device=device, dtype=torch.int32))
    for cache in caches:
        for array in cache.arrays:
            blocks = array.flatten(1).float()
            assert blocks.min(1).values.tolist() == [1, 1, 3, 2]
            assert blocks.max(1).values.tolist() == [1, 1, 3, 2]
