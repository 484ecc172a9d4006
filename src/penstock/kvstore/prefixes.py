"""Prefixes on disk: which there are, which of them are pinned (``pinned_prefix.py``), what they are
called, and their ends.

A prefix is known by the key of its last block, in hexadecimal digits. That is of its tokens alone:
blocks of several kinds may be of one prefix.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kvstore.directory import directory_lock, kind_folder
from penstock.kvstore.holdings import Holdings, Row, empty, holdings
from penstock.kvstore.pinned_prefix import PinAbout, check_label, pin_about
from penstock.kvstore.segment import PIN, SUFFIX, Segment

LEAST_DIGITS: Final = 4
"""Fewest digits of a prefix's name that stand for all of them."""


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix on disk that no longer one begins with, or one that is pinned."""

    id: str
    kind: str
    """The digest of what its blocks are of."""
    model: str
    penstock: str
    """The version that its blocks are of."""
    tokens: int
    bytes: int
    """Those of its blocks, which it may share with others; of a pinned one, of its file."""
    pinned: bool
    label: str = ""
    used_at: int = 0
    """Second since 1970 of the last use."""
    whole: bool = True
    """Whether all of it is there that whoever goes on behind it needs."""


def prefixes(root: Path) -> list[Prefix]:
    """All there are, those used last first. Raises StoreError and OSError."""
    found = [each for kind in holdings(root) for each in of_kind(kind)]
    return sorted(found, key=lambda each: (-each.used_at, each.id))


def found(root: Path, names: Sequence[str]) -> list[Prefix]:
    """The prefixes of these names: the first digits of an id, or a label; ``KIND/`` before it, the
    first digits of a kind, where several kinds of blocks have the same prefix. Raises StoreError
    for a name of none or of several, and OSError. Each is returned once."""
    known = prefixes(root)
    return list(dict.fromkeys(_named(known, name, root) for name in names))


def remove(root: Path, prefix: Prefix) -> None:
    """Let a prefix not be found any more: its file where it is pinned, and those of its blocks that
    no other one has. Raises OSError."""
    tail = bytes.fromhex(prefix.id)
    with directory_lock(root):
        for kind in holdings(root):
            if kind.digest.hex() != prefix.kind:
                continue
            for segment in kind.segments:
                if segment.is_pinned and segment.path.name.startswith(f"{PIN}{prefix.id}."):
                    segment.path.unlink(missing_ok=True)
            empty(_own(kind, tail))


def rename(root: Path, prefix: Prefix, label: str) -> Prefix:
    """Give a pinned prefix another label, or none where that is empty; returns what it is then.

    Raises StoreError for what is no label, and for a prefix that is not pinned (any more), and
    OSError.
    """
    check_label(label)
    name = prefix.id[:12]
    if not prefix.pinned:
        raise StoreError(
            f"{name} is not pinned, and only pinned prefixes have labels: pin it by "
            "'penstock cache add', or let it make room"
        )
    path = kind_folder(root, bytes.fromhex(prefix.kind)) / f"{PIN}{prefix.id}{SUFFIX}"
    with directory_lock(root):
        segment = Segment.open(path) if path.exists() else None
        if segment is None:
            raise StoreError(f"{name} was removed meanwhile")
        with contextlib.closing(segment):
            facts = msgspec.structs.replace(pin_about(segment), label=label)
            segment.set_about(msgspec.json.encode(facts))
    return msgspec.structs.replace(prefix, label=label)


def of_kind(kind: Holdings, tails: Iterable[Key] | None = None) -> Iterator[Prefix]:
    """The prefixes of one kind, or those with these ends. Raises OSError."""
    about, rows = kind.about, kind.rows
    parents = {row.entry["parent"].tobytes() for each in rows.values() for row in each}
    pinned = {
        bytes.fromhex(segment.path.stem.removeprefix(PIN)): segment
        for segment in kind.segments
        if segment.is_pinned
    }
    ends = {*(key for key in rows if key not in parents), *pinned}
    for tail in ends if tails is None else tails:
        path = _path(kind, tail)
        blocks = [row for key in path for row in _distinct(rows.get(key, ()))]
        whole = _is_whole(kind, path)
        segment = pinned.get(tail)
        facts = PinAbout() if segment is None else pin_about(segment)
        last = max((row.second for row in rows.get(tail, ())), default=0)
        yield Prefix(
            id=tail.hex(),
            kind=kind.digest.hex(),
            model=about.model,
            penstock=about.penstock,
            tokens=facts.tokens or (_place(rows, tail) + 1) * BLOCK_SIZE,
            bytes=segment.layout.total_bytes
            if segment is not None
            else sum(int(row.entry["bytes"]) for row in blocks),
            pinned=segment is not None,
            label=facts.label,
            used_at=last,
            whole=whole,
        )


def _path(kind: Holdings, tail: Key) -> list[Key]:
    """The keys of the blocks that end with one, as far back as they are there."""
    keys: list[Key] = []
    key = tail
    while (found := kind.rows.get(key)) and len(keys) <= len(kind.rows):
        keys.append(key)
        if int(found[0].entry["place"]) == 0:
            break
        key = found[0].entry["parent"].tobytes()
    return keys[::-1]


def _is_whole(kind: Holdings, path: Sequence[Key]) -> bool:
    """Whether a path is a whole prefix. Of models all of whose layers have a window it need not
    reach its beginning."""
    if not path:
        return False
    count = _place(kind.rows, path[-1]) + 1
    groups: Counter[int] = Counter()
    for back, key in enumerate(reversed(path)):
        place = count - 1 - back
        for row in _distinct(kind.rows[key]):
            group = int(row.entry["group"])
            if group < len(kind.about.windows) and place >= kind.about.first_seen(group, count):
                groups[group] += 1
    return all(
        groups[group] >= count - kind.about.first_seen(group, count)
        for group in range(len(kind.about.windows))
    )


def _distinct(rows: Iterable[Row]) -> Iterable[Row]:
    """One row of each group."""
    return {int(row.entry["group"]): row for row in rows}.values()


def _place(rows: dict[Key, list[Row]], key: Key) -> int:
    return max((int(row.entry["place"]) for row in rows.get(key, ())), default=-1)


def _named(known: Sequence[Prefix], name: str, root: Path) -> Prefix:
    kind, slash, rest = name.partition("/")
    several = _called(known, name)
    if not several and slash and len(kind) >= LEAST_DIGITS:
        several = _called([each for each in known if each.kind.startswith(kind.lower())], rest)
    if len(several) == 1:
        return several[0]
    if several:
        # The same tokens have the same id, whatever model or version has computed their blocks.
        is_one = len({each.id for each in several}) == 1
        wanted = "its kind, too, as KIND/PREFIX" if is_one else "more digits of one"
        raise StoreError(f"{len(several)} prefixes of {root} are called {name!r}; give {wanted}")
    raise StoreError(
        f"no prefix of {root} is called {name!r}: give at least {LEAST_DIGITS} digits of one, or "
        "its label, as 'penstock cache list' shows them"
    )


def _called(known: Sequence[Prefix], name: str) -> list[Prefix]:
    """Those with this id or label, or else those whose ids begin so."""
    exact = [each for each in known if name and name in (each.id, each.label)]
    begun = [each for each in known if each.id.startswith(name.lower())]
    return exact or (begun if len(name) >= LEAST_DIGITS else [])


def _own(kind: Holdings, tail: Key) -> list[Row]:
    """The blocks that only the prefix with this end has, outside of pinned segments."""
    children: defaultdict[Key, set[Key]] = defaultdict(set)
    for key, found in kind.rows.items():
        for row in found:
            children[row.entry["parent"].tobytes()].add(key)
    own: list[Row] = []
    before: Key | None = None
    for key in reversed(_path(kind, tail)):
        if children[key] - ({before} if before is not None else set()):
            break
        own += [row for row in kind.rows[key] if not row.segment.is_pinned]
        before = key
    return own
