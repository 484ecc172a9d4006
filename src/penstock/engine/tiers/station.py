"""Opens the stores below the pool of an engine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.cache.kv_cache import KvCache
from penstock.cache.retention import Lru
from penstock.engine.block_identity import BlockIdentity
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.host_blocks import HostBlocks, allocated
from penstock.engine.tiers.rule import ReadingCosts
from penstock.engine.tiers.stored_blocks import StoredBlocks
from penstock.engine.tiers.tiers import KvTiers
from penstock.errors import ConfigError, StoreError
from penstock.kv_disk_config import KvDisk
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Name
from penstock.kvstore.cipher import OVERHEAD, BlockCipher
from penstock.kvstore.directory import ABOUT, kind_folder, kind_folders
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.rates import read_rates, write_rates
from penstock.kvstore.segment import SUFFIX
from penstock.kvstore.store import KvStore
from penstock.processes.wake import Wake
from penstock.weights.model_files import ModelFiles

_log = logging.getLogger("penstock.kvstore")


def open_tiers(
    engine_plan: EnginePlan,
    cache: KvCache,
    blocks: CachedBlocks,
    files: ModelFiles | None = None,
    wake: Wake | None = None,
) -> KvTiers | None:
    """The tiers that the options ask for, the fastest first; None where there are none. A directory
    that cannot be used is told of in the log: the engine does without.

    For a disk, reads all weights, unless their digests are remembered. Raises WeightError or
    ModelError where they cannot be read, and ConfigError where memory of the host cannot be had.
    """
    config = engine_plan.config
    stores: list[BlockStore] = []
    kind = b""
    if config.kv_host_bytes:
        stores.append(_host(config.kv_host_bytes, blocks))
    if config.kv_disk is not None:
        found = _disk(engine_plan, config.kv_disk, blocks, files, wake)
        if found is not None:
            stores.append(found[0])
            kind = found[1]
    if not stores:
        return None
    costs = ReadingCosts(len(stores))
    if config.kv_disk is None or not kind:
        return KvTiers(cache, blocks, stores, costs=costs)
    folder = kind_folder(Path(config.kv_disk.folder), kind)
    at_end = _remembered(costs, folder, config.threads)
    return KvTiers(cache, blocks, stores, kind, costs=costs, at_end=at_end)


def _remembered(costs: ReadingCosts, folder: Path, threads: int) -> Callable[[], None]:
    """Begin with what the engine before has measured of the last store, a disk; returns what leaves
    the measurements for the next one."""
    known, bandwidth = read_rates(folder, threads), costs.bandwidths[-1]
    bandwidth.begin(known.bandwidth)
    costs.rate.begin(known.rate)

    def leave() -> None:
        measured = msgspec.structs.replace(
            known, bandwidth=bandwidth.measured, rate=costs.rate.measured
        )
        with contextlib.suppress(OSError):
            write_rates(folder, measured)

    return leave


def _host(size: int, blocks: CachedBlocks) -> HostBlocks:
    largest, groups = max(blocks.group_bytes), len(blocks.group_bytes)
    if size < largest * groups:
        each = f", of each of {groups} groups of layers" if groups > 1 else ""
        raise ConfigError(
            f"kv_host_bytes {size:,}: one block of this model's cache takes {largest:,} bytes"
            f"{each}; give it room for some hundreds"
        )
    try:
        memory = allocated(size, largest, blocks.mover.memory)
    except MemoryError as error:
        raise ConfigError(f"kv_host_bytes {size:,}: {error}; lower it, or leave it out") from None
    return HostBlocks(memory, blocks.group_bytes, _windowed(blocks))


def _windowed(blocks: CachedBlocks) -> list[int]:
    return [group for group, window in enumerate(blocks.windows) if window is not None]


def _disk(
    engine_plan: EnginePlan,
    disk: KvDisk,
    blocks: CachedBlocks,
    files: ModelFiles | None,
    wake: Wake | None,
) -> tuple[StoredBlocks, bytes] | None:
    """The store on disk, and the digest of what its blocks are of."""
    cipher = None if disk.key_file is None else BlockCipher.read(Path(disk.key_file))
    more = 0 if cipher is None else OVERHEAD
    about = KindAbout.of(
        engine_plan.config.served_model_name,
        msgspec.structs.asdict(BlockIdentity.of(engine_plan, files)),
        tuple(size + more for size in blocks.group_bytes),
        blocks.windows,
        "" if cipher is None else cipher.fingerprint,
    )
    try:
        store = _store(disk, about, cipher)
    except OSError as error:
        _log.warning(
            "no KV blocks are kept on disk, since %s cannot be used: %s",
            disk.folder,
            error.strerror or error,
        )
        return None
    except StoreError as error:
        _log.warning("no KV blocks are kept on disk: %s", error)
        return None
    if not store.fits:
        store.close()
        raise ConfigError(
            f"kv_disk {disk}: one block of this model's cache takes {max(about.group_bytes):,} "
            "bytes; give it room for some hundreds"
        )
    if _has_other_key(Path(disk.folder), about):
        _log.warning(
            "%s has blocks of this model that were written with another key, or without one; they "
            "are not read, and make room",
            disk.folder,
        )
    mover = blocks.mover if blocks.is_beside else None
    return StoredBlocks(store, wake, mover), about.digest()


def _store(disk: KvDisk, about: KindAbout, cipher: BlockCipher | None) -> KvStore:
    shown = msgspec.json.format(msgspec.json.encode(about), indent=2)
    folder = StoreFolder(Path(disk.folder), about.digest(), shown, disk.bytes)
    retention: Lru[Name] = Lru()
    with contextlib.ExitStack() as stack:
        stack.callback(folder.close)
        store = KvStore(
            folder,
            about.group_bytes,
            disk.bytes,
            retention,
            windowed=about.windowed,
            cipher=cipher,
        )
        stack.pop_all()
    return store


def _has_other_key(root: Path, about: KindAbout) -> bool:
    """Whether there are such blocks, but for what encrypts them."""
    for path in kind_folders(root):
        with contextlib.suppress(OSError, StoreError):  # it says nothing of what it has
            other = KindAbout.decoded((path / ABOUT).read_bytes())
            same = other.identity == about.identity
            if same and other.cipher != about.cipher and any(path.glob(f"*{SUFFIX}")):
                return True
    return False
