"""A prefix moves in a file, and what has become of one on the way is told."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.stored_blocks import ABOUT, chain, key, of_kind, same
from support.tiered import flip

from penstock.errors import StoreError
from penstock.kvstore import parcel
from penstock.kvstore.about import KindAbout
from penstock.kvstore.parcel import export, import_prefix
from penstock.kvstore.prefixes import found, prefixes

LIMIT = 1 << 20
WRONG = "has not the blocks|different blocks|of which none|follow|cannot be|groups"


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A file of a prefix of five blocks."""
    store = of_kind(tmp_path / "one")
    store.write(chain(0, 5))
    store.close()
    (prefix,) = prefixes(tmp_path / "one")
    path = tmp_path / "prefix"
    assert export(tmp_path / "one", prefix, path, crc32) == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def used(root: Path, about: KindAbout = ABOUT) -> Path:
    """A folder that an engine has used."""
    of_kind(root, about=about).close()
    return root


def test_what_was_exported_is_there_where_it_was_imported(sent: Path, tmp_path: Path) -> None:
    other = used(tmp_path / "other")
    manifest, new = import_prefix(other, LIMIT, sent, label="from there")
    assert (manifest.tokens, new) == (160, True)
    store = of_kind(other)
    assert same(store, range(5))
    assert same(store, range(5), 1)
    store.check_integrity()
    assert import_prefix(other, LIMIT, sent)[1] is False
    (listed,) = prefixes(other)
    assert (listed.label, listed.pinned, listed.whole) == ("from there", True, True)
    # And from there on, byte for byte but for its label.
    again = tmp_path / "again"
    export(other, listed, again, crc32)
    third = used(tmp_path / "third")
    import_prefix(third, LIMIT, again)
    last = of_kind(third)
    assert same(last, range(5))
    for each in (store, last):
        each.close()


def test_any_cut_and_any_flip_is_noticed(sent: Path, tmp_path: Path) -> None:
    other, content = used(tmp_path / "other"), sent.read_bytes()
    rng = random.Random(1)
    cuts = {0, 1, 7, 8, 23, 24, 100, len(content) - 1, len(content) - 32, len(content) - 40}
    for cut in sorted(cuts | {rng.randrange(len(content)) for _ in range(30)}):
        sent.write_bytes(content[:cut])
        refused(other, sent, "is cut|no prefix that|is damaged")
    sent.write_bytes(content + b"x")
    refused(other, sent, "is cut: it has")
    for at in sorted({*range(0, 24), *(rng.randrange(len(content)) for _ in range(80))}):
        if at in range(12, 16):
            continue  # spare bytes mean nothing, and the head's checksum has them
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        sent.write_bytes(flipped)
        refused(other, sent, "is cut|no prefix that|is damaged|has version")
    sent.write_bytes(content)
    assert import_prefix(other, LIMIT, sent)[1]


def refused(root: Path, path: Path, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        import_prefix(root, LIMIT, path)
    assert not prefixes(root)
    assert not list(root.rglob(".new-*"))


def test_another_model_version_or_layout_is_named(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = msgspec.structs.replace(ABOUT, identity={"penstock": "0.9", "weights": "abc"})
    refused(used(tmp_path / "older", older), sent, "penstock 1, not 0.9")
    weights = msgspec.structs.replace(ABOUT, identity={"penstock": "1", "weights": "other"})
    refused(used(tmp_path / "weights", weights), sent, "weights abc, not other")
    groups = msgspec.structs.replace(ABOUT, windows=(0, 40))
    refused(used(tmp_path / "groups", groups), sent, "other groups of layers")
    with pytest.raises(StoreError, match="no engine has used"):
        import_prefix(tmp_path / "nobody", LIMIT, sent)
    assert not (tmp_path / "nobody").exists()
    assert import_prefix(tmp_path / "nobody", LIMIT, sent, unseen=True)[1]
    monkeypatch.setattr(parcel, "STORE_VERSION", 2)
    refused(used(tmp_path / "layout"), sent, "in layout 1, and this Penstock reads 2")


def test_a_manifest_that_cannot_be_is_refused(sent: Path, tmp_path: Path) -> None:
    """Also where its checksums are right: whoever made it was mistaken, or worse."""
    with sent.open("rb") as file:
        manifest = parcel._manifest(file, sent)
    other = used(tmp_path / "other")
    blocks = manifest.blocks
    changes: list[dict[str, Any]] = [
        {"places": 4},
        {"places": 0, "blocks": []},
        {"places": -1},
        {"places": 10**9},
        {"blocks": blocks[:-1]},
        {"blocks": [*blocks[:-1], blocks[0]]},
        {"blocks": [blocks[1], blocks[0], *blocks[2:]]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], size=10**12)]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], key=b"short")]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], parent=b"")]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], key=key(77))]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], parent=key(77))]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], group=7)]},
        {"blocks": [*blocks[:-1], msgspec.structs.replace(blocks[-1], crc=-1)]},
        {"label": "a\nb"},
        {"about": msgspec.structs.replace(ABOUT, group_bytes=())},
        {"about": msgspec.structs.replace(ABOUT, group_bytes=(0, 0))},
        {"about": msgspec.structs.replace(ABOUT, windows=(0,))},
    ]
    for change in changes:
        with sent.open("wb") as file:
            parcel._write(file, msgspec.structs.replace(manifest, **change), iter(()))
        refused(
            other, sent, "has not the blocks|different blocks|of which none|follow|cannot be|groups"
        )


ODD = [
    None,
    0,
    -1,
    1,
    1 << 31,
    1 << 63,
    1 << 64,
    -(1 << 70),
    1e300,
    "",
    "x",
    "\0\x1b[31m",
    "a" * 600,
]
ODD += [
    [],
    {},
    [[]],
    True,
    [0] * 5,
    [5000, 3000],
    [1 << 40, 1],
    [-5, 0],
    [-(1 << 70), 0],
    [0] * 70_000,
]
FIELDS = ["model", "identity", "group_bytes", "windows", "cipher", "store"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*FIELDS, "places", "label", "blocks", "about"]), st.integers()),
        min_size=1,
        max_size=3,
    )
)
def test_any_other_manifest_is_refused_or_pinned_whole(
    sent: Path, tmp_path: Path, changes: list[tuple[str, int]]
) -> None:
    """With checksums that are right."""
    content = sent.read_bytes()
    size = parcel._HEAD.unpack_from(content)[3]
    manifest = json.loads(content[parcel._HEAD.size : parcel._HEAD.size + size])
    for name, value in changes:
        changed = manifest["about"] if name in FIELDS else manifest
        if isinstance(changed, dict):
            changed[name] = ODD[value % len(ODD)]
    body = json.dumps(manifest).encode()
    head = parcel._HEAD.pack(parcel.MAGIC, parcel.VERSION, 0, len(body)) + body
    file = tmp_path / "changed"
    file.write_bytes(head + parcel._sum(head) + content[parcel._HEAD.size + size + 32 :])
    root = tmp_path / "to"
    try:
        import_prefix(root, LIMIT, file, unseen=True)
    except StoreError:
        assert not list(root.rglob("*.kvseg"))
    else:
        (prefix,) = prefixes(root)
        assert (prefix.pinned, prefix.whole) == (True, True)
    shutil.rmtree(root, ignore_errors=True)


def test_a_full_disk_exports_and_imports_nothing(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    other, before = used(tmp_path / "other"), sent.read_bytes()
    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(other, sent, "No space left on device")
    new = tmp_path / "new"
    with pytest.raises(StoreError, match="No space left"):
        import_prefix(new, LIMIT, sent, unseen=True)
    assert not list(new.glob("kv-*"))  # or it would count as one that an engine has used
    monkeypatch.setattr(os, "fsync", full)
    (prefix,) = prefixes(tmp_path / "one")
    with pytest.raises(StoreError, match="cannot be written: No space left"):
        export(tmp_path / "one", prefix, sent, crc32)
    assert sent.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "one", "other", "prefix"]
    with pytest.raises(StoreError, match="cannot be written"):
        export(tmp_path / "one", prefix, tmp_path / "no" / "folder", crc32)


def test_nothing_gives_way_to_a_file_that_is_damaged(sent: Path, tmp_path: Path) -> None:
    small = 40 * 8192
    store = of_kind(tmp_path / "other", small)
    for first in range(100, 500, 10):
        store.write(chain(first, 5))
    before = sorted(path.name for path in (tmp_path / "other").rglob("*.kvseg"))
    content = bytearray(sent.read_bytes())
    content[-1] ^= 1
    sent.write_bytes(content)
    for unseen in (False, True):
        with pytest.raises(StoreError, match="is damaged"):
            import_prefix(tmp_path / "other", small, sent, unseen=unseen)
        assert sorted(path.name for path in (tmp_path / "other").rglob("*.kvseg")) == before
    with pytest.raises(StoreError, match="is damaged"):
        import_prefix(tmp_path / "nobody", small, sent, unseen=True)
    assert not (tmp_path / "nobody").exists()
    store.close()


def test_one_that_would_take_more_than_the_share_is_not_imported(
    sent: Path, tmp_path: Path
) -> None:
    other = used(tmp_path / "other")
    with pytest.raises(StoreError, match="that may be pinned"):
        import_prefix(other, 12 * 8192, sent)
    assert not prefixes(other)


def test_a_prefix_without_its_head_is_not_exported(tmp_path: Path) -> None:
    store = of_kind(tmp_path / "kv")
    store.write([each for each in chain(0, 5) if each.place != 1])
    (tail,) = found(tmp_path / "kv", [key(4).hex()])
    assert not tail.whole
    with pytest.raises(StoreError, match="is not there any more"):
        export(tmp_path / "kv", tail, tmp_path / "out", crc32)
    assert not (tmp_path / "out").exists()
    store.close()


def test_where_all_layers_have_windows_the_end_alone_moves(tmp_path: Path) -> None:
    """Nobody needs what is before it, so it need not be there."""
    about = msgspec.structs.replace(ABOUT, windows=(40, 70))
    store = of_kind(tmp_path / "one", about=about)
    store.write([each for each in chain(0, 8) if each.place >= 5 + (each.group == 0)])
    store.close()
    (prefix,) = prefixes(tmp_path / "one")
    assert (prefix.tokens, prefix.whole) == (256, True)
    export(tmp_path / "one", prefix, tmp_path / "file", crc32)
    other = used(tmp_path / "other", about)
    manifest, new = import_prefix(other, LIMIT, tmp_path / "file")
    assert (manifest.tokens, new) == (256, True)
    (moved,) = prefixes(other)
    assert (moved.id, moved.pinned, moved.whole) == (prefix.id, True, True)
    store = of_kind(other, about=about)
    assert same(store, [6, 7])
    assert same(store, [5, 6, 7], 1)
    store.close()


def test_what_is_no_file_is_not_replaced_by_one(sent: Path, tmp_path: Path) -> None:
    (prefix,) = prefixes(tmp_path / "one")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    before = sorted(tmp_path.iterdir())
    for name in ("fifo", "folder", "dangling"):
        with pytest.raises(StoreError, match="it is no file"):
            export(tmp_path / "one", prefix, tmp_path / name, crc32)
    with pytest.raises(StoreError, match="it is no file"):
        export(tmp_path / "one", prefix, Path(""), crc32)
    assert (tmp_path / "fifo").is_fifo()
    assert sorted(tmp_path.iterdir()) == before
    assert export(tmp_path / "one", prefix, sent, crc32) == sent.stat().st_size


def test_nothing_gives_way_to_what_is_damaged(sent: Path, tmp_path: Path) -> None:
    """Neither blocks, nor what is known of the folder."""
    content = bytearray(sent.read_bytes())
    content[-100] ^= 1
    sent.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        import_prefix(tmp_path / "nobody", LIMIT, sent, unseen=True)
    assert not (tmp_path / "nobody").exists()
    limit = 30 * 8192
    store = of_kind(tmp_path / "full", limit)
    store.write(chain(100, 10))
    store.close()
    before = {path: path.read_bytes() for path in (tmp_path / "full").rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="is damaged"):
        import_prefix(tmp_path / "full", limit, sent)
    assert before == {path: path.read_bytes() for path in before}


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """Nor waited for."""
    os.mkfifo(tmp_path / "fifo")
    refused(used(tmp_path / "to"), tmp_path / "fifo", "it is a FIFO, not a regular file")
    refused(used(tmp_path / "to"), tmp_path, "it is a folder, not a regular file")


def test_a_folder_that_would_be_too_small_is_not_made(sent: Path, tmp_path: Path) -> None:
    size = 12 * 8192
    with pytest.raises(StoreError, match="0 of the 49,152 that may be pinned"):
        import_prefix(tmp_path / "a" / "b", size, sent, unseen=True)
    assert not (tmp_path / "a").exists()
    assert import_prefix(tmp_path / "a" / "b", 2 * size, sent, unseen=True)[1]


def test_a_damaged_block_is_not_exported(tmp_path: Path) -> None:
    """Nor found any more; with it computed again, the prefix is exported."""
    root = tmp_path / "one"
    store = of_kind(root)
    store.write(chain(0, 5))
    (prefix,) = prefixes(root)
    (segment,) = store.index.segments
    entry = int(
        np.flatnonzero((segment.entries["place"] == 3) & (segment.entries["group"] == 1))[0]
    )
    flip(segment.path, segment.layout.slot_at(entry) + 77)
    with pytest.raises(StoreError, match="block 3 of the prefix is not what its checksum says"):
        export(root, prefix, tmp_path / "file", crc32)
    assert not (tmp_path / "file").exists()
    store.refresh()
    assert not store.holds(key(3), 1)
    with pytest.raises(StoreError, match="1 of the prefix's 10 blocks are not on disk"):
        export(root, prefix, tmp_path / "file", crc32)
    store.write(chain(0, 5))
    export(root, prefix, tmp_path / "file", crc32)
    store.close()
