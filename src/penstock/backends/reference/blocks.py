"""The blocks of the reference cache as bytes: its plain arrays in the layout of
``interface/blocks.py``, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.cache import KvStore, LatentStore, RowStore, Store
from penstock.backends.reference.checksum import crc32c
from penstock.cache.geometry import BLOCK_SIZE, ROW_LANES
from penstock.interface.blocks import BlockBytes, Bytes, DamagedBlockError
from penstock.plan.plan import Plan

_RUN = {"float32": 1, "float16": 1, "bfloat16": 2, "fp8": 2, "int8": 4, "int4": 4}
"""Components, or tokens, that lie together."""


@dataclass(frozen=True)
class ReferenceBlocks:
    """``interface.blocks.BlockIO`` of the reference executor's stores, those of each layer."""

    plan: Plan
    stores: Sequence[tuple[Store, ...]]
    num_blocks: int

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        layers, dtype = self.plan.kv_layers, self.plan.kv_dtype
        return tuple(
            sum(layers[number].block_bytes(dtype) for number in group.layers)
            for group in self.plan.kv_groups
        )

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        self._check(group, blocks)
        parts = [
            pack(self.stores[layer], block)
            for block in blocks
            for layer in self.plan.kv_groups.groups[group].layers
        ]
        data = np.frombuffer(b"".join(parts), np.uint8).copy()
        sums = [crc32c(each.tobytes()) for each in data.reshape(len(blocks), -1)] if parts else []
        return BlockBytes(data, np.array(sums, np.uint32))

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None:
        self._check(group, blocks)
        each = self.group_bytes[group]
        if len(content.data) != each * len(blocks):
            raise ValueError(
                f"{len(blocks)} blocks of group {group} take {each * len(blocks)} bytes, not "
                f"{len(content.data)}"
            )
        if len(content.checksums) != len(blocks):
            raise ValueError("blocks and their checksums differ in number")
        rows = content.data.reshape(len(blocks), each)
        for number, (row, checksum) in enumerate(zip(rows, content.checksums, strict=True)):
            if crc32c(row.tobytes()) != checksum:
                raise DamagedBlockError(
                    f"block {number} of {len(blocks)} is not what its checksum says: it was "
                    "damaged on its way"
                )
        layers, dtype = self.plan.kv_layers, self.plan.kv_dtype
        for row, block in zip(rows, blocks, strict=True):
            start = 0
            for layer in self.plan.kv_groups.groups[group].layers:
                end = start + layers[layer].block_bytes(dtype)
                unpack(self.stores[layer], block, row[start:end])
                start = end

    def _check(self, group: int, blocks: Sequence[int]) -> None:
        if not 0 <= group < len(self.plan.kv_groups):
            raise ValueError(f"there is no group {group} of cached layers")
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"there is no block {block} of the KV cache")


def pack(stores: tuple[Store, ...], block: int) -> bytes:
    """The bytes of a layer's block."""
    first = stores[0]
    if isinstance(first, RowStore):
        rows = first.data[block]
        padding = -rows.shape[1] % ROW_LANES
        return np.pad(rows, ((0, 0), (0, padding))).tobytes()
    if isinstance(first, LatentStore):
        return _pack_latents(first, block)
    parts: list[Bytes] = []
    for store, values in zip(stores, (False, True), strict=True):
        assert isinstance(store, KvStore)
        elements = _elements(store, block)
        _, heads, dim = elements.shape
        run = _RUN[store.dtype]
        if values:
            tile = elements.reshape(BLOCK_SIZE // run, run, heads, dim).transpose(2, 0, 3, 1)
        else:
            tile = elements.reshape(BLOCK_SIZE, heads, dim // run, run).transpose(1, 2, 0, 3)
        parts.append(_bytes_of(tile, heads))
        if store.scales is not None:
            parts.append(_bytes_of(store.scales[_slots(block)].T, heads))
    return np.concatenate(parts, axis=1).tobytes()


def unpack(stores: tuple[Store, ...], block: int, content: Bytes) -> None:
    """Overwrite a layer's block by its bytes."""
    first = stores[0]
    if isinstance(first, RowStore):
        rows = content.view(first.data.dtype).reshape(first.data.shape[1], -1)
        first.data[block] = rows[:, : first.data.shape[2]]
        return
    if isinstance(first, LatentStore):
        _unpack_latents(first, block, content)
        return
    heads = stores[0].data.shape[1]  # type: ignore[union-attr]  # the two others are done with
    rest = content.reshape(heads, -1)
    for store, values in zip(stores, (False, True), strict=True):
        assert isinstance(store, KvStore)
        dim, run, kind = _padded(store), _RUN[store.dtype], _kind(store)
        size = BLOCK_SIZE * dim * kind.itemsize
        tile = np.ascontiguousarray(rest[:, :size]).view(kind)
        if values:
            tile = tile.reshape(heads, BLOCK_SIZE // run, dim, run).transpose(1, 3, 0, 2)
        else:
            tile = tile.reshape(heads, dim // run, BLOCK_SIZE, run).transpose(2, 0, 1, 3)
        _set_elements(store, block, tile.reshape(BLOCK_SIZE, heads, dim))
        rest = rest[:, size:]
        if store.scales is not None:
            scales = np.ascontiguousarray(rest[:, : 2 * BLOCK_SIZE]).view(store.scales.dtype)
            store.scales[_slots(block)] = scales.T
            rest = rest[:, 2 * BLOCK_SIZE :]


def _pack_latents(store: LatentStore, block: int) -> bytes:
    latents, keys = store.parts
    rows = np.concatenate([each.data[_slots(block), 0] for each in (latents, keys)], axis=1)
    rows = _halved(rows) if latents.dtype == "int4" else rows
    padding = -rows.shape[1] % (4 if latents.dtype in ("int8", "int4") else 2)
    packed = np.pad(rows, ((0, 0), (0, padding))).tobytes()
    for each in (latents, keys):
        if each.scales is not None:
            packed += each.scales[_slots(block), 0].tobytes()
    return packed


def _unpack_latents(store: LatentStore, block: int, content: Bytes) -> None:
    latents, keys = store.parts
    coded = latents.scales is not None
    end = len(content) - (4 * BLOCK_SIZE if coded else 0)
    rows = content[:end].view(latents.data.dtype).reshape(BLOCK_SIZE, -1)
    first = latents.data.shape[2]
    dim = first + keys.data.shape[2]
    if latents.dtype == "int4":
        rows = _joined(rows, dim)
    latents.data[_slots(block), 0] = rows[:, :first]
    keys.data[_slots(block), 0] = rows[:, first:dim]
    if coded:
        scales = content[end:].reshape(2, -1)
        for each, own in zip((latents, keys), scales, strict=True):
            assert each.scales is not None
            each.scales[_slots(block), 0] = own.view(each.scales.dtype)


def _slots(block: int) -> slice:
    return slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)


def _kind(store: KvStore) -> np.dtype[Any]:
    """The type of what lies in a tile."""
    return np.dtype(np.int8) if store.dtype == "int4" else store.data.dtype


def _padded(store: KvStore) -> int:
    """Elements of a token's head in a tile."""
    dim = store.data.shape[2]
    match store.dtype:
        case "int8":
            return int(-(-dim // 4) * 4)
        case "int4":
            return int(-(-dim // 8) * 4)
        case _:
            return int(dim)


def _elements(store: KvStore, block: int) -> NDArray[Any]:
    """A block's heads ``[32, heads, elements]`` as they lie in a tile."""
    heads = store.data[_slots(block)]
    heads = _halved(heads) if store.dtype == "int4" else heads
    return np.pad(heads, ((0, 0), (0, 0), (0, _padded(store) - heads.shape[2])))


def _set_elements(store: KvStore, block: int, elements: NDArray[Any]) -> None:
    dim = store.data.shape[2]
    heads = _joined(elements, dim) if store.dtype == "int4" else elements[..., :dim]
    store.data[_slots(block)] = heads


def _halved(codes: NDArray[Any]) -> NDArray[Any]:
    """Two codes of 4 bits in a byte: those of the first half of components in the low halves."""
    low, high = np.split(codes, 2, axis=-1)
    halved: NDArray[Any] = ((low & 15) | (high << 4)).astype(np.int8)
    return halved


def _joined(codes: NDArray[Any], dim: int) -> NDArray[Any]:
    """The reverse of :func:`_halved`, for ``dim`` components."""
    packed = codes[..., : dim // 2].astype(np.int8)
    low = (packed << 4).astype(np.int8) >> 4  # with its sign
    return np.concatenate([low, packed >> 4], axis=-1)


def _bytes_of(array: NDArray[Any], heads: int) -> Bytes:
    """``array`` ``[heads, ...]`` as bytes ``[heads, ...]``."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(heads, -1)
