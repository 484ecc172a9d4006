"""Two processes on one directory, of which any may end at any write: what is read is what was
written, whatever happens."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.stored_blocks import ABOUT, DIGEST, SIZES, block, key, opened

from penstock.errors import StoreError
from penstock.interface.blocks import Bytes
from penstock.kvstore import segment
from penstock.kvstore.file_reader import FileReader
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.pinned_prefix import pin_blocks
from penstock.kvstore.places import Place
from penstock.kvstore.read_memory import ReadMemory
from penstock.kvstore.segment import Segment
from penstock.kvstore.slot_index import SlotIndex
from penstock.kvstore.store import KvStore

LIMIT = 40 * 8192
NUMBERS = st.lists(st.integers(0, 59), min_size=1, max_size=12, unique=True)
GROUPS = st.integers(0, len(SIZES) - 1)
WHO = st.integers(0, 1)


class _Killed(BaseException):
    """Ends a process, as far as its store is concerned."""


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.stores = [opened(self.root, LIMIT), opened(self.root, LIMIT)]
        self.memory = ReadMemory()
        self.pinned: dict[int, tuple[set[int], int]] = {}
        """The numbers and the group of each pinned prefix, by the number of its last block."""

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.root)

    @rule(who=WHO, numbers=NUMBERS, group=GROUPS)
    def write(self, who: int, numbers: list[int], group: int) -> None:
        store = self.stores[who]
        if len(numbers) == 1:
            store.refresh()  # or it might be held for what is gone
        store.write([block(number, group) for number in numbers])
        if len(numbers) == 1:
            self.check_read(store, numbers, group, least=1)

    @rule(who=WHO, numbers=NUMBERS, group=GROUPS)
    def read(self, who: int, numbers: list[int], group: int) -> None:
        self.check_read(self.stores[who], numbers, group)

    @rule(who=WHO, numbers=NUMBERS, group=GROUPS)
    def use(self, who: int, numbers: list[int], group: int) -> None:
        self.stores[who].use([key(number) for number in numbers], group)

    @rule(who=WHO, numbers=NUMBERS, group=GROUPS)
    def drop(self, who: int, numbers: list[int], group: int) -> None:
        store = self.stores[who]
        dropped = store.drop([key(number) for number in numbers], group)
        for left, pinned_group in self.pinned.values():
            if pinned_group == group:  # perhaps of another place
                left.difference_update(numbers)
        assert not any(store.holds(key(number), group) for number in numbers)
        store.check_integrity()
        store.empty(dropped)

    @rule(who=WHO)
    def refresh(self, who: int) -> None:
        self.stores[who].refresh()

    @rule(who=WHO)
    def all_that_is_held_is_there(self, who: int) -> None:
        store = self.stores[who]
        store.refresh()
        for number in range(60):
            for group in range(len(SIZES)):
                if store.holds(key(number), group):
                    self.check_read(store, [number], group, least=1)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        self.stores[who].refresh()
        before = len(self.stores[who])
        self.stores[who].close()
        self.stores[who] = opened(self.root, LIMIT)
        # More, where two had written the same block, and one of both has made room.
        assert len(self.stores[who]) >= before

    @rule(who=WHO, numbers=NUMBERS, group=GROUPS, at=st.integers(0, 12), part=st.floats(0, 1))
    def killed_while_writing(
        self, who: int, numbers: list[int], group: int, at: int, part: float
    ) -> None:
        write, count = segment._write, 0

        def until_killed(fd: int, parts: Any, offset: int) -> None:
            nonlocal count
            count += 1
            if count > at:
                content = b"".join(parts)
                os.pwrite(fd, content[: int(part * len(content))], offset)
                raise _Killed
            write(fd, parts, offset)

        store = self.stores[who]
        with mock.patch.object(segment, "_write", until_killed):
            try:
                store.write([block(number, group) for number in numbers])
                store.close()
            except _Killed:
                give_up(store)
        self.stores[who] = opened(self.root, LIMIT)

    @rule(numbers=NUMBERS, group=GROUPS)
    def pin(self, numbers: list[int], group: int) -> None:
        folder = StoreFolder(self.root, DIGEST, b"{}", LIMIT)
        blocks, count = (block(number, group) for number in numbers), len(numbers)
        try:
            if pin_blocks(folder, ABOUT, key(numbers[-1]), blocks, count, count, "label"):
                self.pinned[numbers[-1]] = (set(numbers), group)
        except StoreError as error:
            assert "may be pinned" in str(error)  # noqa: PT017
        finally:
            folder.close()

    @rule(which=st.integers(0, 5))
    def unpin(self, which: int) -> None:
        if self.pinned:
            last = list(self.pinned)[which % len(self.pinned)]
            (path,) = self.root.rglob(f"pin-{key(last).hex()}*")
            path.unlink()
            del self.pinned[last]

    @rule(who=WHO)
    def what_is_pinned_is_there(self, who: int) -> None:
        store = self.stores[who]
        store.refresh()
        for numbers, group in self.pinned.values():
            for number in numbers:
                self.check_read(store, [number], group, least=1)

    @rule(who=WHO, numbers=NUMBERS, seconds=st.integers(1, 1000))
    def keep(self, who: int, numbers: list[int], seconds: int) -> None:
        self.stores[who].keep([key(number) for number in numbers], seconds)

    @rule(who=WHO)
    def clear(self, who: int) -> None:
        store = self.stores[who]
        store.clear()
        assert len(store) == store.index.num_pinned

    @invariant()
    def books_agree(self) -> None:
        for store in self.stores:
            store.check_integrity()
        assert sum(path.stat().st_size for path in self.root.rglob("*.kvseg")) <= LIMIT

    def check_read(self, store: KvStore, numbers: list[int], group: int, least: int = 0) -> None:
        memory = self.memory.take(store.read_bytes(len(numbers)))
        past_cache = bool(sum(numbers) % 2)
        keys = [key(number) for number in numbers]
        done, content, _ = store.read(keys, group, memory, past_cache)
        assert done >= least
        rows = content.data.reshape(done, SIZES[group])
        for number, row, checksum in zip(numbers, rows, content.checksums, strict=False):
            expected = block(number, group)
            # What a process that was killed has left is of a checksum that tells.
            assert checksum == expected.checksum
            assert (row == expected.data).all()
        self.memory.give(memory)


def give_up(store: KvStore) -> None:
    """What is left of a store when its process is killed: nothing but what it wrote."""
    for each in store.index.segments:
        each.close()
    store._folder.close()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=20, stateful_step_count=25)


@pytest.mark.slow
def test_for_longer() -> None:
    long = settings(max_examples=150, stateful_step_count=60)
    run_state_machine_as_test(Machine, settings=long)


def test_a_reader_sees_no_block_that_is_being_written(tmp_path: Path) -> None:
    """While a slot is written over, a reader that began before finds nothing, or what was there."""
    store, reader = opened(tmp_path, LIMIT), opened(tmp_path, LIMIT)
    store.write([block(1)])
    reader.refresh()
    read = FileReader.read

    def meanwhile(self: FileReader, memory: Bytes, at: int, past_cache: bool) -> bool:
        was_read = read(self, memory, at, past_cache)
        store.empty(store.drop([key(1)], 0))
        store.write([block(2)])
        return was_read

    memory = ReadMemory().take(reader.read_bytes(1))
    for past_cache in (False, True):
        with mock.patch.object(FileReader, "read", meanwhile):
            assert reader.read([key(1)], 0, memory, past_cache)[0] == 0
        store.write([block(1)])
        reader.refresh()
        # It came back, in the slot where it was: that is another entry.
        with mock.patch.object(FileReader, "read", meanwhile):
            assert reader.read([key(1)], 0, memory, past_cache)[0] == 0
        store.write([block(1)])
        reader.refresh()
    for each in (store, reader):
        each.close()


def test_a_use_that_is_noted_too_late_keeps_no_file_open(tmp_path: Path) -> None:
    """A block is asked for while the writer gives its segment up."""
    store = opened(tmp_path)
    store.write([block(1)])
    (held,) = store.index.segments
    segment = weakref.ref(held)
    del held
    use = SlotIndex.use

    def meanwhile(self: SlotIndex, *args: Any) -> list[Place]:
        places = use(self, *args)
        store.clear()
        return places

    with mock.patch.object(SlotIndex, "use", meanwhile):
        store.use([key(1)], 0)
    store.refresh()
    gc.collect()
    assert segment() is None
    store.close()


def test_a_file_is_closed_behind_its_last_reader(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.write([block(1)])
    (held,) = store.index.segments
    assert isinstance(held, Segment)
    for path in list(tmp_path.rglob("*.kvseg")):
        path.unlink()
    store.refresh()
    assert not len(store)
    os.fstat(held._fd)  # it is open still
    store.close()
