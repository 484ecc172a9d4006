"""Prefixes on disk: listed, named, renamed, removed."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from support.pinned import LIMIT, pinned
from support.stored_blocks import ABOUT, block, chain, key, of_kind, place_of_kind, same
from support.tiered import segments

from penstock.errors import StoreError
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.pinned_prefix import pin
from penstock.kvstore.prefixes import Prefix, found, prefixes, remove, rename


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
