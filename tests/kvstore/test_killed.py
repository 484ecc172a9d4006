"""Processes that are killed while they write: the next one finds what was written before."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest
from support.killed_writer import BATCH, write_and_read
from support.stored_blocks import SIZES, block, key, opened, same

from penstock.kvstore.store import KvStore

LIMIT = 60 * 8192
ROUNDS = 200
LONGEST_S = 0.02


@pytest.mark.slow
def test_a_process_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["support.killed_writer"])
    rng = random.Random(1)
    written = end = 0
    for number in range(ROUNDS):
        first = number * 1_000_000
        receiver, sender = processes.Pipe(duplex=False)
        child = processes.Process(target=write_and_read, args=(tmp_path, LIMIT, first, sender))
        child.start()
        sender.close()
        for _ in range(rng.randint(1, 4)):  # from when its store is open on
            end = receiver.recv()
        time.sleep(rng.uniform(0, LONGEST_S))
        child.kill()
        child.join()
        assert child.exitcode == -9, "it ended by itself"
        try:
            while True:
                end = receiver.recv()
        except (EOFError, OSError):
            receiver.close()
        written += end - first
        store = opened(tmp_path, LIMIT)
        try:
            store.check_integrity()
            _check_all(store)
            # What was written whole last is there, whatever was being written.
            latest = range(max(end - BATCH, first), end)
            assert all(same(store, latest, group) for group in range(len(SIZES)))
            own = first + 500_000  # of no child
            store.write([block(own)])
            assert same(store, [own])
        finally:
            store.close()
    assert written >= ROUNDS * BATCH
    assert sum(os.stat(path).st_size for path in tmp_path.rglob("*.kvseg")) <= LIMIT


def _check_all(store: KvStore) -> None:
    """Every block that is found has its own bytes."""
    numbers = {key(each): each for each in _numbers(store)}
    for name in list(store.index):
        number = numbers[name[:16]]
        assert same(store, [number], int.from_bytes(name[16:], "little"))


def _numbers(store: KvStore) -> list[int]:
    """The numbers of all blocks: blocks are placed in chains by their numbers."""
    places = []
    for segment in store.index.segments:
        places += segment.entries["place"][segment.entries["full"] == 1].tolist()
    return places
