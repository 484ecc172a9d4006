"""A prefix in a file, for another machine.

::

    0     HEAD       magic, version, bytes of the manifest
          manifest   what the prefix is, and its blocks (:class:`Manifest`), in JSON
          32 bytes   BLAKE2b of all before
          blocks     one behind the other
          32 bytes   BLAKE2b of the blocks

Checksums tell what was damaged on the way. They do not tell who made the file, and keys and values
become part of answers: a file is as trustworthy as whoever it comes from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.errors import StoreError
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Checksum, NewBlock
from penstock.kvstore.directory import kind_folder, remove_empty
from penstock.kvstore.folder import StoreFolder, check_share
from penstock.kvstore.holdings import Holdings, holdings
from penstock.kvstore.layout import VERSION as STORE_VERSION
from penstock.kvstore.pinned_prefix import check_label, layout_of, pin_blocks
from penstock.kvstore.prefixes import Prefix
from penstock.regular_file import open_regular
from penstock.written_file import sync_folder

MAGIC: Final = b"penstkKX"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQ")
_SUM_BYTES: Final = 32
_MOST_MANIFEST: Final = 256 << 20
_MOST_PLACES: Final = 1 << 20
_MOST_GROUPS: Final = 1 << 16  # an entry has two bytes for the number of one
_SPARE: Final = 0


class SentBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block of the file."""

    key: bytes
    parent: bytes
    group: int
    place: int
    size: int
    crc: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the prefix is."""

    about: KindAbout
    label: str
    places: int
    """Blocks of its chain: so many times 32 tokens."""
    blocks: list[SentBlock]
    """Those of all groups of layers, in the order in which they follow."""

    @property
    def tail(self) -> bytes:
        """The key of its last block."""
        return next(each.key for each in self.blocks if each.place == self.places - 1)

    @property
    def tokens(self) -> int:
        return self.places * BLOCK_SIZE


def export(root: Path, prefix: Prefix, path: Path, checksum: Checksum) -> int:
    """Write a prefix to a file, whole or not at all; returns how many bytes it has.

    Raises StoreError where blocks of it are not there, are not what their ``checksum`` says, or
    cannot be read or written, and where the path is that of something else than a file, which would
    be replaced.
    """
    if not path.name or (os.path.lexists(path) and not path.is_file()):
        raise StoreError(
            f"{path} cannot be written: it is no file; name a new one, or one to replace"
        )
    kind = next((k for k in holdings(root) if k.digest.hex() == prefix.kind), None)
    if kind is None:
        raise StoreError(f"{root} has no blocks of {prefix.model} any more")
    tail = bytes.fromhex(prefix.id)
    keys = kind.chain(tail)
    needed = kind.needed(keys)
    sent = [
        SentBlock(
            key,
            row.entry["parent"].tobytes(),
            group,
            int(row.entry["place"]),
            int(row.entry["bytes"]),
            int(row.entry["crc"]),
        )
        for key, group, row in needed
    ]
    manifest = Manifest(about=kind.about, label=prefix.label, places=len(keys), blocks=sent)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                size = _write(file, manifest, kind.read(needed, checksum))
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    return size


def import_prefix(
    root: Path, limit: int, path: Path, label: str | None = None, unseen: bool = False
) -> tuple[Manifest, bool]:
    """Pin the prefix of a file in a directory; returns what it is, and whether it was not pinned
    before. ``label``: another one than its own; ``unseen``: though no engine has used the directory
    with its model.

    Raises StoreError where the file is not whole, is not of an engine like those that use the
    directory, or has no room there; nothing of it is kept then.
    """
    try:
        with open(open_regular(path), "rb") as file:
            manifest = _manifest(file, path)
            about, digest = manifest.about, manifest.about.digest()
            _check_blocks(file, manifest, path)
            if not unseen and not kind_folder(root, digest).is_dir():
                raise StoreError(_unknown(root, about, path))
            if not root.exists():  # nor will it, if it would be too small
                layout = layout_of(about, len(manifest.blocks), digest)
                check_share(layout.total_bytes, limit)
            shown = msgspec.json.format(msgspec.json.encode(about), indent=2)
            was_there = kind_folder(root, digest).is_dir()
            try:
                with contextlib.closing(StoreFolder(root, digest, shown, limit)) as folder:
                    new = pin_blocks(
                        folder,
                        about,
                        manifest.tail,
                        _blocks(file, manifest, path),
                        len(manifest.blocks),
                        manifest.places,
                        manifest.label if label is None else label,
                    )
            except BaseException:
                if not was_there:
                    with contextlib.suppress(OSError):
                        remove_empty(root, digest)
                raise
    except OSError as error:
        named = error.filename or root
        raise StoreError(f"{path} was not imported: {named}: {error.strerror or error}") from None
    return manifest, new


def _write(file: BinaryIO, manifest: Manifest, blocks: Iterator[NewBlock]) -> int:
    body = msgspec.json.encode(manifest)
    head = _HEAD.pack(MAGIC, VERSION, _SPARE, len(body)) + body
    file.write(head + _sum(head))
    total, size = hashlib.blake2b(digest_size=_SUM_BYTES), 0
    for block in blocks:
        total.update(block.data.data)
        file.write(block.data.data)
        size += len(block.data)
    file.write(total.digest())
    return len(head) + size + 2 * _SUM_BYTES


def _manifest(file: BinaryIO, path: Path) -> Manifest:
    """The manifest of a file that is as long as it says. Raises StoreError and OSError."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise StoreError(f"{path} is no prefix that 'penstock cache export' has written")
    _, version, _, length = _HEAD.unpack(head)
    if version != VERSION:
        raise StoreError(
            f"{path} has version {version} of the format, and this Penstock reads {VERSION}; "
            "export it again by a Penstock like this one"
        )
    if length > _MOST_MANIFEST:
        raise StoreError(f"{path} is damaged: its manifest cannot have {length:,} bytes")
    body = file.read(length)
    if len(body) < length or file.read(_SUM_BYTES) != _sum(head + body):
        raise StoreError(f"{path} is cut or damaged: its head is not what its checksum says")
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
        check_label(manifest.label)
    except (msgspec.DecodeError, StoreError) as error:
        raise StoreError(f"{path} says of itself what cannot be: {error}") from None
    _check(manifest, path)
    told = file.tell() + sum(each.size for each in manifest.blocks) + _SUM_BYTES
    if size != told:
        raise StoreError(f"{path} is cut: it has {size:,} bytes, and {told:,} belong to it")
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """Raise StoreError for a manifest of no prefix, or of another layout."""
    about = manifest.about
    if about.store != STORE_VERSION:
        raise StoreError(
            f"{path} has blocks in layout {about.store}, and this Penstock reads {STORE_VERSION}; "
            "export it by a Penstock like this one"
        )
    groups = len(about.group_bytes)
    if (
        not 0 < groups <= _MOST_GROUPS
        or len(about.windows) != groups
        or min(about.group_bytes) <= 0
    ):
        raise StoreError(f"{path} says nothing of its groups of layers")
    keys: dict[int, bytes] = {}
    if not 0 < manifest.places <= _MOST_PLACES:
        raise StoreError(f"{path} has not the blocks of a prefix of {manifest.places} blocks")
    firsts = [about.first_seen(group, manifest.places) for group in range(groups)]
    if sum(manifest.places - first for first in firsts) != len(manifest.blocks):
        raise StoreError(f"{path} has not the blocks of a prefix of {manifest.places} blocks")
    wanted = [
        (group, place)
        for group, first in enumerate(firsts)
        for place in range(first, manifest.places)
    ]
    ends = any(place == manifest.places - 1 for _, place in wanted)
    if not ends or [(b.group, b.place) for b in manifest.blocks] != wanted:
        raise StoreError(f"{path} has not the blocks of a prefix of {manifest.places} blocks")
    for block in manifest.blocks:
        if len(block.key) != 16 or keys.setdefault(block.place, block.key) != block.key:
            raise StoreError(f"{path} has different blocks at place {block.place}")
        if block.size != about.group_bytes[block.group] or not 0 <= block.crc < 1 << 32:
            raise StoreError(f"{path} has a block of {block.size:,} bytes, of which none is")
        if len(block.parent) != 16:
            raise StoreError(f"{path} has a block that follows none")
        if block.place - 1 in keys and keys[block.place - 1] != block.parent:
            raise StoreError(f"{path} has blocks that do not follow each other")


def _check_blocks(file: BinaryIO, manifest: Manifest, path: Path) -> None:
    """Read all blocks once, so that nothing gives way to what is damaged; the file is then as it
    was before. Raises StoreError."""
    begin = file.tell()
    for _ in _blocks(file, manifest, path):
        pass
    file.seek(begin)


def _blocks(file: BinaryIO, manifest: Manifest, path: Path) -> Iterator[NewBlock]:
    """The blocks; raises StoreError behind the last one if they are not what their checksum
    says."""
    total = hashlib.blake2b(digest_size=_SUM_BYTES)
    for each in manifest.blocks:
        data = file.read(each.size)
        total.update(data)
        row = np.frombuffer(data, np.uint8)
        yield NewBlock(each.key, each.parent, each.group, each.place, row, each.crc)
    if file.read(_SUM_BYTES) != total.digest():
        raise StoreError(
            f"{path} is damaged: its blocks are not what their checksum says; copy it again"
        )


def _unknown(root: Path, about: KindAbout, path: Path) -> str:
    """Why a directory has no place for blocks of a kind."""
    there: list[Holdings] = list(holdings(root)) if root.is_dir() else []
    same = [each.about for each in there if each.about.model == about.model] or [
        each.about for each in there
    ]
    shown = [f"of {mine.model}: {'; '.join(mine.differences(about))}" for mine in same[:3]]
    told = f" ({' | '.join(shown)})" if shown else ""
    return (
        f"{path} is of {about.model} by Penstock {about.penstock}, and no engine has used {root} "
        f"with just that{told}; start one with --kv-disk there, or use --unseen if one will come"
    )


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SUM_BYTES).digest()
