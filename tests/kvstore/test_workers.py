"""The threads of a store do what they were asked to, whatever fails or ends meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stored_blocks import block, key, opened, same
from support.waiting import PATIENCE_S, until

from penstock.interface.blocks import Bytes
from penstock.kvstore import workers
from penstock.kvstore.pieces import Piece, Wanted
from penstock.kvstore.store import KvStore
from penstock.kvstore.workers import StoreWorkers


def started(
    store: KvStore,
    pieces: list[Piece] | None = None,
    has_room: Callable[[], None] = lambda: None,
    **options: Callable[[int], Bytes],
) -> StoreWorkers:
    return StoreWorkers(store, ([] if pieces is None else pieces).append, has_room, **options)


def test_what_was_to_be_cleared_is_cleared_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the writer is at work when both are asked for."""
    store = opened(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()
    sync = store.sync

    def slowly() -> None:
        syncing.set()
        assert go_on.wait(PATIENCE_S)
        sync()

    monkeypatch.setattr(store, "sync", slowly)
    its = started(store)
    its.write([block(1)])
    assert syncing.wait(PATIENCE_S)
    its.clear()
    end = threading.Thread(target=its.close, args=(PATIENCE_S,))
    end.start()
    until(lambda: its._closing, PATIENCE_S, "the end")
    go_on.set()
    end.join()
    again = opened(tmp_path)
    assert not len(again)
    again.close()


def test_a_damaged_block_is_removed_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        syncing.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(store, "sync", slowly)
    its = started(store)
    its.write([block(1), block(2)])
    assert syncing.wait(PATIENCE_S)
    its.drop([key(1)], 0)
    end = threading.Thread(target=its.close, args=(PATIENCE_S,))
    end.start()
    until(lambda: its._closing, PATIENCE_S, "the end")
    go_on.set()
    end.join()
    again = opened(tmp_path)
    assert [again.holds(key(n), 0) for n in (1, 2)] == [False, True]
    again.close()


def test_who_had_no_room_for_a_block_is_told_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the queue was not full to its last byte."""
    monkeypatch.setattr(workers, "QUEUE_BYTES", 12_000)
    told = threading.Event()
    its = started(opened(tmp_path), has_room=told.set)
    its.write([block(1), block(2)])  # 10,000 bytes, beside which there is no room for another
    assert told.wait(PATIENCE_S)
    until(lambda: its.room == 12_000, PATIENCE_S, "room")
    its.close(PATIENCE_S)


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), MemoryError()])
def test_readers_outlast_a_lack_of_memory(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """What is not read is computed, and later blocks are read as ever."""
    lacks = True

    def memory(size: int) -> Bytes:
        if lacks:
            raise error
        return workers.pages(size)

    pieces: list[Piece] = []
    its = started(opened(tmp_path), pieces, memory=memory)
    its.write([block(n) for n in range(3)])
    until(lambda: not its.unwritten_bytes, PATIENCE_S, "what is to be written")
    wanted = Wanted(0, (0, 1, 2), tuple(key(n) for n in range(3)))
    its.read(1, [wanted] * 4)  # more than there are readers
    until(lambda: len(pieces) == 4, PATIENCE_S, "what is to be read")
    assert [piece.found for piece in pieces] == [0] * 4
    assert its.stats.failures == 4
    assert caplog.text.count("cannot be read from disk") == 1
    lacks = False
    its.read(2, [wanted])
    until(lambda: len(pieces) == 5, PATIENCE_S, "what is to be read")
    assert pieces[4].found == 3
    its.close(PATIENCE_S)


def test_what_was_written_last_is_there_after_the_end(tmp_path: Path) -> None:
    its = started(opened(tmp_path))
    for n in range(20):
        its.write([block(n)])
    its.close(PATIENCE_S)
    again = opened(tmp_path)
    assert same(again, range(20))
    again.close()
