"""Blocks of the device's cache as pieces of the host's memory, and back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from penstock.backends.cuda import block_mover  # noqa: E402
from penstock.backends.cuda.block_mover import DeviceBlocks, staging_bytes  # noqa: E402
from penstock.backends.cuda.cache import allocate  # noqa: E402
from penstock.backends.cuda.host_memory import pinned  # noqa: E402
from penstock.interface.blocks import BlockBytes, BlockMover, BlockRows  # noqa: E402
from penstock.plan.kv_groups import KvGroups, KvLayer, groups_of  # noqa: E402

NUM_BLOCKS = 12
KINDS: dict[str, tuple[Any, list[KvLayer]]] = {
    "float32": ("float32", [KvLayer(2, 24)] * 2),
    "bfloat16": ("bfloat16", [KvLayer(3, 17)] * 2),
    "int8": ("int8", [KvLayer(2, 24)] * 3),
    "fp8": ("fp8", [KvLayer(1, 40)] * 2),
    "k8v4": ("k8v4", [KvLayer(2, 24)] * 2),
    "int4": ("int4", [KvLayer(2, 10)] * 2),
    "latents": ("bfloat16", [KvLayer(1, 48, value_dim=32)] * 2),
    "coded latents": ("int8", [KvLayer(1, 47, value_dim=32)] * 2),
    "windows": ("bfloat16", [KvLayer(2, 24), KvLayer(2, 24), KvLayer(2, 24, window=40)]),
}


def groups(layers: list[KvLayer], dtype: Any) -> KvGroups:
    runs: dict[Any, list[int]] = {}
    for number, layer in enumerate(layers):
        runs.setdefault(layer.window, []).append(number)
    return groups_of(layers, list(runs.values()), dtype)


def filled(kind: str, device: Any) -> tuple[DeviceBlocks, list[Any]]:
    """What moves the blocks of a cache of random bytes, and the arrays of that."""
    dtype, layers = KINDS[kind]
    of = groups(layers, dtype)
    largest = max(of, key=lambda group: len(group.layers))
    caches = allocate([layers[i] for i in largest.layers], dtype, NUM_BLOCKS, device)
    generator = np.random.default_rng(1)
    for cache in caches:
        for array in cache.arrays:
            there = array.view(torch.uint8)
            there.copy_(torch.from_numpy(generator.integers(0, 256, there.shape, np.uint8)))
    return DeviceBlocks(of, caches, NUM_BLOCKS, device), caches


def piece(caches: list[Any], block: int) -> np.ndarray:
    """A block's bytes, of all layers that caches are of."""
    parts = [
        array[block].contiguous().view(torch.uint8).cpu().numpy().reshape(-1)
        for cache in caches
        for array in cache.arrays
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_go_and_come_back(kind: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_mover, "STAGING_BYTES", 20_000)  # a few blocks at a time
    mover, caches = filled(kind, device)
    assert isinstance(mover, BlockMover)
    whole = len(caches)
    before = [piece(caches, block) for block in range(NUM_BLOCKS)]
    counts = {"windows": [2, 1]}.get(kind, [whole])
    for group, count in enumerate(counts):
        size = mover.group_bytes[group]
        taken, free = [7, 0, 11, 3, 2], [1, 4, 5, 6, 8]
        content = mover.take(group, taken).wait()
        assert isinstance(content, BlockRows)
        for row, block in zip(content.rows, taken, strict=True):
            assert len(row) == size
            np.testing.assert_array_equal(row, piece(caches[:count], block))
        copy = mover.put(group, free, content)
        copy.wait()
        assert copy.is_done
        for block, source in zip(free, taken, strict=True):
            np.testing.assert_array_equal(
                piece(caches[:count], block), piece(caches[:count], source)
            )
            # Of a smaller group, the rest of a page is as it was.
            np.testing.assert_array_equal(piece(caches, block)[size:], before[block][size:])
        for block in (*taken, 9, 10):
            np.testing.assert_array_equal(piece(caches, block), before[block])
        for block in free:
            data = torch.from_numpy(before[block][:size].copy())
            mover.put(group, [block], BlockRows((data.numpy(),))).wait()
    mover.close()
    with pytest.raises(RuntimeError, match="closed"):
        mover.take(0, [1])


def test_rows_may_lie_anywhere(device: Any) -> None:
    mover, caches = filled("int8", device)
    size = mover.group_bytes[0]
    memory = mover.memory(4 * size)
    assert len(memory) == 4 * size
    assert memory.ctypes.data % 4096 == 0
    rows = [memory[size * at : size * (at + 1)] for at in (3, 0, 1)]
    mover.take(0, [2, 5, 9], rows).wait()
    for row, block in zip(rows, (2, 5, 9), strict=True):
        np.testing.assert_array_equal(row, piece(caches, block))
    data = np.concatenate(rows)
    data.setflags(write=False)
    mover.put(0, [1, 3, 4], BlockBytes(data, np.zeros(3, np.uint32))).wait()
    for block, source in ((1, 2), (3, 5), (4, 9)):
        np.testing.assert_array_equal(piece(caches, block), piece(caches, source))


def test_what_does_not_suit_is_refused(device: Any) -> None:
    mover, caches = filled("windows", device)
    before = [piece(caches, block) for block in range(NUM_BLOCKS)]
    size = mover.group_bytes[0]
    rows = tuple(np.zeros(size, np.uint8) for _ in range(2))
    for group, blocks, content, message in (
        (2, [0, 1], BlockRows(rows), "no group 2"),
        (0, [0, NUM_BLOCKS], BlockRows(rows), f"no block {NUM_BLOCKS}"),
        (0, [0, -1], BlockRows(rows), "no block -1"),
        (0, [0], BlockRows(rows), "1 blocks of"),
        (1, [0, 1], BlockRows(rows), "2 blocks of"),
        (0, [0, 1], BlockBytes(rows[0], np.zeros(1, np.uint32)), "2 blocks take"),
    ):
        with pytest.raises(ValueError, match=message):
            mover.put(group, blocks, content)
        if isinstance(content, BlockRows):
            with pytest.raises(ValueError, match=message):
                mover.take(group, blocks, content.rows)
    for block, bytes_before in enumerate(before):
        np.testing.assert_array_equal(piece(caches, block), bytes_before)


def test_staging_is_what_is_reckoned(device: Any) -> None:
    mover, _ = filled("windows", device)
    taken = sum(lane.staging.nbytes for lane in (mover._out, mover._in))
    assert taken == staging_bytes(max(mover.group_bytes))


def test_staging_holds_a_block_of_any_size() -> None:
    assert staging_bytes(3 << 20) == 2 * 2 * (3 << 20)
    assert staging_bytes(20 << 20) == 2 * (20 << 20)


def test_memory_that_the_system_has_not_is_refused(device: Any) -> None:
    with pytest.raises(MemoryError, match="bytes"):
        pinned(1 << 60, device)


def test_memory_is_given_back_to_the_driver_before_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its last view: what is not mapped any more may be another's by then."""
    mapped: list[bool] = []

    def is_mapped(address: int) -> bool:
        with open("/proc/self/maps", encoding="ascii") as maps:
            ranges = [line.split()[0].split("-") for line in maps]
        return any(int(first, 16) <= address < int(end, 16) for first, end in ranges)

    runtime = SimpleNamespace(
        cudaHostRegister=lambda *args: 0,
        cudaHostUnregister=lambda address: mapped.append(is_mapped(address)),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = pinned(100_001, torch.device("cuda"))
    assert len(memory) == 100_001
    view = torch.from_numpy(memory[4096:8192].view(np.int32))
    del memory
    assert not mapped
    del view
    assert mapped == [True]
