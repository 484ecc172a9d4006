"""Prefixes on disk: listed, pinned, removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pytest
from support.stored_blocks import ABOUT, block, chain, fill, key, of_kind, place_of_kind, same
from support.tiered import flip, segments

from penstock.errors import StoreError
from penstock.kv_disk_config import BlockPlace
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import pin
from penstock.kvstore.pinning import pin_computed
from penstock.kvstore.prefixes import Prefix, found, prefixes, remove, rename
from penstock.kvstore.segment import Segment
from penstock.kvstore.store import KvStore

LIMIT = 100 * 8192


def held(root: Path) -> Holdings:
    return Holdings(root / f"kv-{ABOUT.digest().hex()}")


def pinned(root: Path, first: int, count: int, label: str = "", limit: int = LIMIT) -> bool:
    folder = place_of_kind(root, limit)
    try:
        keys = [key(n) for n in range(first, first + count)]
        return pin(folder, held(root), keys, label, crc32, now=5000)
    finally:
        folder.close()


def fill_up(store: KvStore, first: int = 100_000) -> None:
    """Write until others have made room several times over."""
    for number in range(first, first + 3000, 10):
        store.write([block(n) for n in range(number, number + 10)])
    assert store.stats.evicted > 100


def test_what_is_there_is_listed(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT, now=lambda: 1000.0)
    store.write(chain(0, 5))
    store.write([each for each in chain(0, 5) if each.place < 3])
    # Another one begins with the first three blocks of it.
    store.write([block(50, group)._replace(parent=key(2), place=3) for group in range(2)])
    store.close()
    listed = {each.id: each for each in prefixes(tmp_path)}
    assert set(listed) == {key(4).hex(), key(50).hex()}
    assert listed[key(4).hex()] == Prefix(
        id=key(4).hex(),
        kind=ABOUT.digest().hex(),
        model="model",
        penstock="1",
        tokens=160,
        bytes=5 * 8000,
        pinned=False,
        used_at=1000,
    )
    assert listed[key(50).hex()].tokens == 128
    assert all(each.whole for each in listed.values())
    with pytest.raises(StoreError, match="there is no folder"):
        prefixes(tmp_path / "nowhere")


def test_a_pinned_prefix_outlives_all_others(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5, "greeting")
    assert not pinned(tmp_path, 0, 5, "again")
    store.refresh()
    store.check_integrity()
    fill_up(store)
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    store.clear()
    assert same(store, range(5))
    store.close()
    again = of_kind(tmp_path, LIMIT)
    assert same(again, range(5))
    fill_up(again, 200_000)
    assert same(again, range(5))
    again.check_integrity()
    (listed,) = (each for each in prefixes(tmp_path) if each.pinned)
    assert (listed.id, listed.label, listed.tokens) == (key(4).hex(), "greeting", 160)
    assert listed.whole
    assert size(tmp_path) <= LIMIT
    again.close()


def test_it_gives_way_to_no_other_kind(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    pinned(tmp_path, 0, 5)
    store.close()
    other = of_kind(tmp_path, LIMIT, msgspec.structs.replace(ABOUT, identity={"penstock": "2"}))
    fill_up(other)
    assert size(tmp_path) <= LIMIT
    other.close()
    again = of_kind(tmp_path, LIMIT)
    assert same(again, range(5))
    again.close()


def test_pinned_prefixes_take_at_most_their_share(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    for first in (0, 100):
        store.write(chain(first, 10))
        assert pinned(tmp_path, first, 10)
    store.refresh()
    store.write(chain(200, 10))
    half = f"{LIMIT // 2:,} that may be pinned are taken .50% of the folder's {LIMIT:,}"
    with pytest.raises(StoreError, match=half):
        pinned(tmp_path, 200, 10)
    (least, *_) = [each for each in prefixes(tmp_path) if each.pinned]
    remove(tmp_path, least)
    assert pinned(tmp_path, 200, 10)
    store.close()


def test_one_that_is_not_whole_is_not_pinned(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write([each for each in chain(0, 5) if (each.place, each.group) != (3, 1)])
    with pytest.raises(StoreError, match="1 of the prefix's 10 blocks are not on disk"):
        pinned(tmp_path, 0, 5)
    assert not any(each.pinned for each in prefixes(tmp_path))
    store.close()


def test_removing_leaves_what_others_have(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.write([block(50, group)._replace(parent=key(2), place=3) for group in range(2)])
    pinned(tmp_path, 0, 5, "a")
    store.refresh()
    (one,) = found(tmp_path, ["a"])
    remove(tmp_path, one)
    store.refresh()
    store.check_integrity()
    assert not store.holds(key(3), 0)
    assert not store.holds(key(4), 1)
    store.close()
    again = of_kind(tmp_path, LIMIT)  # which has never seen what was pinned
    assert [n for n in (*range(5), 50) if again.holds(key(n), 0)] == [0, 1, 2, 50]
    again.close()
    (one,) = found(tmp_path, [key(50).hex()[:6]])
    remove(tmp_path, one)
    assert not prefixes(tmp_path)


def test_names_are_digits_or_labels(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    for first in (0, 100):
        store.write(chain(first, 5))
    pinned(tmp_path, 0, 5, 'odd "name" \\ \u00e9\u4e2d')
    for name in (key(4).hex(), key(4).hex()[:8].upper(), 'odd "name" \\ \u00e9\u4e2d'):
        assert [each.id for each in found(tmp_path, [name])] == [key(4).hex()]
    for name in ("", key(4).hex()[:3], "nobody", "../x", key(4).hex() + "0"):
        with pytest.raises(StoreError, match="at least 4 digits"):
            found(tmp_path, [name])
    for label in ("a\nb", "x" * 501, "\u001b[1m"):
        with pytest.raises(StoreError, match="a label is a line"):
            pinned(tmp_path, 100, 5, label)
    pinned(tmp_path, 100, 5, 'odd "name" \\ \u00e9\u4e2d')
    with pytest.raises(StoreError, match="2 prefixes of"):
        found(tmp_path, ['odd "name" \\ \u00e9\u4e2d'])
    store.close()


def test_of_a_prefix_of_several_kinds_the_kind_is_named(tmp_path: Path) -> None:
    """As where another version of Penstock has pinned what this one pins: the ids are the same."""
    other = msgspec.structs.replace(ABOUT, identity={"penstock": "2"})
    kinds = [about.digest().hex() for about in (ABOUT, other)]
    for about in (ABOUT, other):
        store = of_kind(tmp_path, LIMIT, about)
        store.write(chain(0, 5))
        store.close()
        folder = place_of_kind(tmp_path, LIMIT, about)
        held = Holdings(folder.path)
        pin(folder, held, [key(n) for n in range(5)], "a/b", crc32)
        folder.close()
    for name in ("a/b", key(4).hex(), key(4).hex()[:8]):
        with pytest.raises(StoreError, match=r"2 prefixes .* give its kind, too, as KIND/PREFIX"):
            found(tmp_path, [name])
        for kind in kinds:
            for digits in (kind, kind[:4].upper()):
                (one,) = found(tmp_path, [f"{digits}/{name}"])
                assert (one.kind, one.id) == (kind, key(4).hex())
    for name in (f"{kinds[0][:3]}/a/b", f"{kinds[0]}/", f"{kinds[0]}/nobody", "nobody/a/b"):
        with pytest.raises(StoreError, match="no prefix of"):
            found(tmp_path, [name])
    remove(tmp_path, found(tmp_path, [f"{kinds[0][:6]}/a/b"])[0])
    assert [each.kind for each in found(tmp_path, ["a/b"])] == [kinds[1]]


def test_a_pinned_prefix_is_read_from_its_own_file(tmp_path: Path) -> None:
    """Which nothing writes over, unlike what else there is of its blocks."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    assert pinned(tmp_path, 0, 5)
    keys = [key(n) for n in range(5)]
    its = held(tmp_path)
    assert all(len(its.rows[each]) == 4 for each in keys)
    assert all(row.segment.is_pinned for _, _, row in its.needed(keys))


def test_a_pinned_prefix_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are on disk before it has its name, and so is its name before that is told."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    done: list[str] = []
    sync, rename_file = os.fsync, Path.rename

    def synced(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        sync(fd)

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        return rename_file(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    assert pinned(tmp_path, 0, 5)
    name, folder = f"pin-{key(4).hex()}.kvseg", f"kv-{ABOUT.digest().hex()}"
    assert done == [f"sync .new-{name}", "rename", f"sync {folder}"]


def test_who_ends_while_pinning_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    rename = Path.rename

    class Killed(BaseException):
        pass

    def killed(self: Path, target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "rename", killed)
    monkeypatch.setattr(Path, "unlink", lambda *args, **kwargs: None)  # nor does it clean up
    with pytest.raises(Killed):
        pinned(tmp_path, 0, 5)
    monkeypatch.undo()
    assert rename is Path.rename
    assert list(tmp_path.rglob(".new-*"))
    store.refresh()
    store.check_integrity()
    assert not any(each.pinned for each in prefixes(tmp_path))
    assert pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob(".new-*"))
    store.close()


def test_a_full_disk_pins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))

    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        pinned(tmp_path, 0, 5)
    monkeypatch.undo()
    assert not list(tmp_path.rglob(".new-*"))
    monkeypatch.setattr(Segment, "put", full)
    with pytest.raises(OSError, match="No space left"):
        pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob(".new-*"))
    assert not list(tmp_path.rglob("pin-*"))
    store.close()


def test_windows_need_only_what_is_seen(tmp_path: Path) -> None:
    """The last blocks alone are pinned of layers with a window, and count."""
    about = msgspec.structs.replace(ABOUT, windows=(0, 40))
    store = of_kind(tmp_path, LIMIT, about)
    store.write([each for each in chain(0, 8) if each.group == 0 or each.place >= 6])
    folder = place_of_kind(tmp_path, LIMIT, about)
    path = tmp_path / f"kv-{about.digest().hex()}"
    assert pin(folder, Holdings(path), [key(n) for n in range(8)], "w", crc32)
    folder.close()
    store.refresh()
    fill_up(store)
    assert same(store, range(8))
    assert same(store, [6, 7], 1)
    (listed,) = (each for each in prefixes(tmp_path) if each.pinned)
    assert listed.whole
    store.check_integrity()
    store.close()


def test_fillers_are_what_makes_room(tmp_path: Path) -> None:
    """What the other tests count on: without a pin, a prefix that is not asked for goes."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    fill(store, 10)
    fill_up(store)
    assert not store.holds(key(0), 0)
    store.close()


def size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.kvseg"))


def test_one_that_lost_a_block_is_pinned_anew(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5, "greeting")
    store.close()
    again = of_kind(tmp_path, LIMIT)
    again.empty(again.drop([key(3)], 1))
    again.close()
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))  # as an engine does that finds it no more
    assert pinned(tmp_path, 0, 5, "greeting")
    assert not pinned(tmp_path, 0, 5, "greeting")
    for _ in range(2):  # what was there is forgotten first
        store.refresh()
    store.clear()
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    store.close()


def test_a_folder_says_what_it_holds_though_its_first_engine_could_not(tmp_path: Path) -> None:
    of_kind(tmp_path, LIMIT).close()
    about = tmp_path / f"kv-{ABOUT.digest().hex()}" / "about.json"
    about.write_bytes(b"")
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    assert [each.model for each in prefixes(tmp_path)] == ["model"]


def test_what_is_no_segment_is_passed_over(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.close()
    folder = tmp_path / f"kv-{ABOUT.digest().hex()}"
    (folder / "a.kvseg").symlink_to("/etc/passwd")
    (folder / "b.kvseg").mkdir()
    (folder / "c.kvseg").write_bytes(b"x" * 10_000)
    os.mkfifo(folder / "d.kvseg")
    assert [each.id for each in prefixes(tmp_path)] == [key(4).hex()]
    assert pinned(tmp_path, 0, 5)


def test_a_pinned_prefix_has_another_label(tmp_path: Path) -> None:
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    store.write(chain(100, 3))
    pinned(tmp_path, 0, 5, "one")
    before = segments(tmp_path)
    (one,) = found(tmp_path, ["one"])
    longest = '"\\' * 250
    for label in (longest, "größe", "", "two"):
        assert rename(tmp_path, one, label) == msgspec.structs.replace(one, label=label)
        (now,) = found(tmp_path, [one.id])
        assert now == msgspec.structs.replace(one, label=label)
    with pytest.raises(StoreError, match=r"no prefix .* is called 'one'"):
        found(tmp_path, ["one"])
    # It is where it was, and what it was.
    assert segments(tmp_path) == before
    store.refresh()
    assert store.index.num_pinned == 10
    assert same(store, range(5))
    for label in ("a\nb", "x" * 501):
        with pytest.raises(StoreError, match="a label is a line"):
            rename(tmp_path, one, label)
    (other,) = (each for each in prefixes(tmp_path) if not each.pinned)
    with pytest.raises(StoreError, match="is not pinned, and only pinned prefixes have labels"):
        rename(tmp_path, other, "three")
    remove(tmp_path, one)
    with pytest.raises(StoreError, match="was removed meanwhile"):
        rename(tmp_path, one, "four")
    store.close()


@pytest.mark.parametrize("name", ["pin-copy", "pin-", f"pin-{key(4).hex()} (1)", "a copy"])
def test_a_copy_of_a_file_is_no_pinned_prefix(name: str, tmp_path: Path) -> None:
    store = of_kind(tmp_path)
    store.write(chain(0, 5))
    (file,) = segments(tmp_path)
    shutil.copy(file, file.with_name(f"{name}.kvseg"))
    (only,) = prefixes(tmp_path)
    assert (only.id, only.pinned) == (key(4).hex(), False)
    store.refresh()
    assert store.index.num_pinned == 0
    store.check_integrity()
    store.close()


def test_what_does_not_come_to_disk_is_not_pinned(tmp_path: Path) -> None:
    of_kind(tmp_path, LIMIT).close()
    place = BlockPlace(folder=str(tmp_path), limit=LIMIT, kind=ABOUT.digest().hex())
    with pytest.raises(
        StoreError, match="10 of the prefix's 10 blocks are not on disk: the engine"
    ):
        pin_computed(place, [key(n) for n in range(5)], "", crc32, patience_s=0.3)


def test_a_damaged_block_is_not_pinned(tmp_path: Path) -> None:
    """And what was pinned before stays as it was."""
    store = of_kind(tmp_path, LIMIT)
    store.write(chain(0, 5))
    (unpinned,) = store.index.segments
    flip(unpinned.path, unpinned.layout.slot_at(slot_of(unpinned, 2)) + 5)
    with pytest.raises(StoreError, match="block 2 of the prefix is not what its checksum says"):
        pinned(tmp_path, 0, 5)
    assert not list(tmp_path.rglob("pin-*"))
    store.refresh()
    assert not store.holds(key(2), 0)
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5)
    # One of its blocks is dropped there, and what else there is of that block is damaged.
    (path,) = tmp_path.rglob("pin-*")
    pin_segment = Segment.open(path)
    assert pin_segment is not None
    pin_segment.refresh()
    with pin_segment.locked():
        pin_segment.clear([slot_of(pin_segment, 2)])
    flip(unpinned.path, unpinned.layout.slot_at(slot_of(unpinned, 2)) + 5)
    before = path.read_bytes()
    with pytest.raises(StoreError, match="block 2 of the prefix is not what its checksum says"):
        pinned(tmp_path, 0, 5)
    assert path.read_bytes() == before
    store.refresh()
    store.write(chain(0, 5))
    assert pinned(tmp_path, 0, 5)
    store.refresh()
    assert same(store, range(5))
    for each in (store, pin_segment):
        each.close()


def slot_of(segment: Segment, place: int) -> int:
    """Where the block of the first group is that has this place in its chain."""
    entries = segment.entries
    there = (entries["place"] == place) & (entries["group"] == 0) & (entries["full"] == 1)
    return int(np.flatnonzero(there)[0])
