"""Opens the store of an engine, and starts its threads."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.cache.retention import Lru
from penstock.engine.block_identity import BlockIdentity
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.engine_plan import EnginePlan
from penstock.engine.tiers.disk import DiskStats
from penstock.engine.tiers.rule import ReadingCosts
from penstock.engine.tiers.tier import KvTier
from penstock.errors import ConfigError, StoreError
from penstock.kv_disk_config import KvDisk
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Name, NewBlock
from penstock.kvstore.cipher import OVERHEAD, BlockCipher
from penstock.kvstore.folder import ABOUT, StoreFolder, kind_folder, kind_folders
from penstock.kvstore.rates import read_rates, write_rates
from penstock.kvstore.segment import SUFFIX
from penstock.kvstore.store import KvStore
from penstock.kvstore.workers import Piece, StoreWorkers, Wanted
from penstock.processes.wake import Wake
from penstock.weights.model_files import ModelFiles

_log = logging.getLogger("penstock.kvstore")


class StoredBlocks:
    """:class:`penstock.engine.tiers.disk.Disk`: a store and its threads."""

    def __init__(
        self,
        store: KvStore,
        wake: Wake | None = None,
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Takes the ``store``. ``wake`` is set when the engine has work that nobody asked for;
        ``at_end`` is called before the store is closed, and may raise OSError."""
        self._at_end = at_end
        self._store = store
        self._wake = wake
        self._changed = threading.Condition()
        self._arrived: deque[Piece] = deque()
        self._workers = StoreWorkers(store, self._deliver, self._woken)

    @property
    def room(self) -> int:
        return self._workers.room

    @property
    def has_arrived(self) -> bool:
        return bool(self._arrived)

    @property
    def is_off(self) -> bool:
        return self._workers.is_off

    def holds(self, key: Key, group: int) -> bool:
        return self._store.holds(key, group)

    def use(self, keys: Sequence[Key], group: int) -> None:
        self._store.use(keys, group)

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        self._store.keep(keys, seconds)

    def write(self, blocks: Sequence[NewBlock]) -> None:
        self._workers.write(blocks)

    def drop(self, keys: Sequence[Key], group: int) -> None:
        self._workers.drop(keys, group)

    def read(self, number: int, pieces: Sequence[Wanted]) -> None:
        self._workers.read(number, pieces)

    def done(self, piece: Piece) -> None:
        self._workers.done(piece)

    def cancel(self, number: int) -> None:
        self._workers.cancel(number)

    def clear(self) -> None:
        self._workers.clear()

    def arrived(self) -> Sequence[Piece]:
        if not self._arrived:
            return ()
        with self._changed:
            pieces = tuple(self._arrived)
            self._arrived.clear()
        return pieces

    def wait(self, seconds: float) -> None:
        with self._changed:
            if not self._arrived:
                self._changed.wait(seconds)

    def stats(self) -> DiskStats:
        store, work = self._store.stats, self._workers.stats
        return DiskStats(
            blocks=len(self._store),
            pinned=self._store.index.num_pinned,
            unwritten_bytes=self._workers.unwritten_bytes,
            evicted=store.evicted,
            written_bytes=work.written_bytes,
            read_bytes=work.read_bytes,
            read_seconds=work.read_seconds,
            failures=work.failures,
        )

    def close(self, seconds: float) -> None:
        with contextlib.suppress(OSError):
            self._at_end()
        self._workers.close(seconds)

    def _deliver(self, piece: Piece) -> None:
        with self._changed:
            self._arrived.append(piece)
            self._changed.notify_all()

    def _woken(self) -> None:
        if self._wake is not None:
            self._wake.set()


def open_tier(
    engine_plan: EnginePlan,
    cache: KvCache,
    blocks: CachedBlocks,
    files: ModelFiles | None = None,
    wake: Wake | None = None,
) -> KvTier | None:
    """The tier that the options ask for; None where there is none, or its directory cannot be used,
    of which the log tells: the engine does without.

    Reads all weights, unless their digests are remembered. Raises WeightError or ModelError where
    they cannot be read.
    """
    disk = engine_plan.config.kv_disk
    if disk is None:
        return None
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
    costs, path = ReadingCosts(), kind_folder(Path(disk.folder), about.digest())
    known = read_rates(path, engine_plan.config.threads)
    costs.bandwidth.begin(known.bandwidth)
    costs.rate.begin(known.rate)

    def remember() -> None:
        measured = msgspec.structs.replace(
            known, bandwidth=costs.bandwidth.measured, rate=costs.rate.measured
        )
        write_rates(path, measured)

    stored = StoredBlocks(store, wake, at_end=remember)
    return KvTier(cache, blocks, stored, about.digest(), costs=costs)


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
    with contextlib.suppress(OSError, StoreError):
        for path in kind_folders(root):
            other = KindAbout.decoded((path / ABOUT).read_bytes())
            same = other.identity == about.identity
            if same and other.cipher != about.cipher and any(path.glob(f"*{SUFFIX}")):
                return True
    return False
