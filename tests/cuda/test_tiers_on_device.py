"""Copies of blocks beside a GPU's steps, and tiers below its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bitwise import prompt
from support.handed import LLAMA, complete, config, folder_of, plain, request
from support.tiered import settle, tier, tiered

BLOCK = 12288
"""Bytes of a block of LLAMA."""
CUDA: dict[str, Any] = {"backend": "cuda", "threads": None, "kv_cache_bytes": 32 * BLOCK}


def moved(device: Any) -> tuple[Any, Any]:
    """What moves the blocks of a large cache of random bytes, and its array."""
    import torch

    from penstock.backends.cuda.block_mover import DeviceBlocks
    from penstock.backends.cuda.cache import allocate
    from penstock.plan.kv_groups import KvLayer, groups_of

    layers = [KvLayer(8, 128)] * 4
    caches = allocate(layers, "bfloat16", 256, device)
    for cache in caches:
        for array in cache.arrays:
            array.view(torch.uint8).random_(0, 256)
    return DeviceBlocks(groups_of(layers, [range(4)], "bfloat16"), caches, 256, device), caches


def piece(caches: list[Any], block: int) -> np.ndarray[Any, Any]:
    import torch

    parts = [a[block].contiguous().view(torch.uint8) for c in caches for a in c.arrays]
    return np.concatenate([part.cpu().numpy().reshape(-1) for part in parts])


def test_pinned_memory_is_pinned(device: Any) -> None:
    import torch

    from penstock.backends.cuda.host_memory import pinned

    for size in (1, 4096, 3 << 20, (64 << 20) + 5):
        memory = pinned(size, device)
        assert len(memory) == size
        assert torch.from_numpy(memory).is_pinned()
        del memory


def test_copies_are_those_of_their_place_in_the_order(device: Any) -> None:
    """Many blocks out and in, beside work on the current stream that takes long."""
    import torch

    from penstock.backends.cuda.block_order import Touched

    mover, caches = moved(device)
    size = mover.group_bytes[0]
    before = [piece(caches, block) for block in range(256)]
    busy = torch.randn(4096, 4096, device=device)
    memory = mover.memory(128 * size)
    rows = [memory[i * size : (i + 1) * size] for i in range(128)]
    for _ in range(20):
        busy = busy @ busy / 64
    out = mover.take(0, range(128), rows)
    # What is put there later does not reach what has left.
    other = mover.take(0, range(128, 256))
    back = mover.put(0, range(128), other.wait())
    numbers = np.arange(128, dtype=np.int32)
    assert len(mover._order.waits_for("steps", Touched(reads=(numbers,)))) <= 1
    for row, wanted in zip(out.wait().rows, before, strict=False):
        np.testing.assert_array_equal(row, wanted)
    back.wait()
    torch.cuda.synchronize()
    for block in range(128):
        np.testing.assert_array_equal(piece(caches, block), before[128 + block])
    assert out.seconds > 0
    print(
        f"out {128 * size / out.seconds / 1e9:.1f} GB/s, in {128 * size / back.seconds / 1e9:.1f}"
    )
    mover.close()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_answers_are_those_of_an_engine_without(kv_cache_dtype: str, tmp_path: Path) -> None:
    from penstock.engine.tiers.rule import ReadingCosts

    folder = folder_of(tmp_path, LLAMA)
    options = CUDA | {"kv_cache_dtype": kv_cache_dtype, "kv_cache_bytes": 32 * BLOCK}
    rounds = [
        [request(f"{seed}", prompt(seed, 100 + 60 * seed), max_tokens=20) for seed in range(8)],
        [request(f"{seed}", prompt(seed % 4, 250), salt="salt" * (seed > 3)) for seed in range(8)],
    ]
    alone = plain(config(folder, **options | {"kv_cache_bytes": 4 << 20}))
    expected = [complete(alone, each) for each in rounds]
    alone.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadingCosts, "worth", lambda *args: True)
        for tiers in (
            {"kv_host_bytes": 300 * BLOCK},
            {"kv_disk": f"{tmp_path / 'kv'}:100MB"},
            {"kv_disk": f"{tmp_path / 'kv'}:100MB", "kv_host_bytes": 40 * BLOCK},
        ):
            with tiered(config(folder, **options, **tiers)) as core:
                for _ in range(3):
                    for asked, answers in zip(rounds, expected, strict=True):
                        assert complete(core, asked) == answers
                if "kv_disk" in tiers:
                    settle(core)
                    assert tier(core).damaged_blocks == 0
                stats = core.stats()
                found = [t.restored_tokens for t in (stats.tier, stats.host_tier) if t is not None]
                assert sum(found) > 0
