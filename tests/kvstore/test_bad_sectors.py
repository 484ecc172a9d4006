"""A disk that cannot read some of a segment any more."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.stored_blocks import block, fill, opened, same

from penstock.kvstore.segment import Segment
from penstock.kvstore.use_notes import UseNotes


def test_a_segment_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 1 << 20)
    fill(store, 40)
    first = store.index.segments[0]
    before = len(store)
    bad_sectors(first.path, monkeypatch)
    store.refresh()
    assert store.unreadable == {first.path.name}
    assert 0 < len(store) < before
    store.check_integrity()
    # What was there can be written anew, elsewhere, and stays found.
    store.write([block(n) for n in range(40)])
    store.refresh()
    assert same(store, range(40))
    store.close()
    again = opened(tmp_path, 1 << 20)
    assert again.unreadable == {first.path.name}
    assert same(again, range(40))
    again.check_integrity()
    again.close()


def test_a_table_of_uses_that_cannot_be_read_costs_its_segment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, 1 << 20)
    fill(store, 40)
    first = store.index.segments[0]
    exchange = UseNotes.exchange

    def failing(notes: UseNotes, segment: Segment) -> object:
        if segment is first:
            raise OSError(errno.EIO, "Input/output error")
        return exchange(notes, segment)

    monkeypatch.setattr(UseNotes, "exchange", failing)
    store.refresh()
    assert store.unreadable == {first.path.name}
    assert len(store) > 0
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_what_may_pass_is_no_reason_to_leave_a_segment_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = opened(tmp_path, 1 << 20)
    fill(store, 40)
    bad_sectors(store.index.segments[0].path, monkeypatch, number)
    with pytest.raises(OSError, match="of the test"):
        store.refresh()
    monkeypatch.undo()
    store.refresh()
    assert not store.unreadable
    assert same(store, range(40))
    store.close()


def bad_sectors(path: Path, monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> None:
    refresh = Segment.refresh

    def failing(segment: Segment) -> object:
        if segment.path == path:
            raise OSError(number, "of the test")
        return refresh(segment)

    monkeypatch.setattr(Segment, "refresh", failing)
