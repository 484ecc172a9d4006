"""The files of an artifact: reading, writing and checking them.

``weights.bin`` holds the executor's regions one after another, each from a multiple of 4096 bytes
on. ``manifest.json`` says which, and has a CRC-32C for every MiB of each. Its first line holds a
digest of the lines that follow, so that no byte of either file can change unnoticed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from penstock.artifact.files import require_trusted
from penstock.artifact.key import ArtifactKey
from penstock.artifact.tuned import NOTHING_TUNED
from penstock.errors import ArtifactError
from penstock.interface.weights import PackedRegions, Place
from penstock.regular_file import open_regular

MANIFEST: Final = "manifest.json"
WEIGHTS: Final = "weights.bin"

CHUNK_BYTES: Final = 1 << 20
"""Bytes per checksum, which one thread reads: small, so that the matrices of a layer divide evenly
among threads."""
_ALIGNMENT: Final = 4096
_BATCH_BYTES: Final = 1 << 30
"""Bytes moved in one native call, which signals do not interrupt."""
_MAX_MANIFEST: Final = 64 << 20
_MAX_CHUNK: Final = 1 << 30

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


class Region(msgspec.Struct, frozen=True):
    """One region of packed weights: bytes from ``offset`` of weights.bin."""

    name: str
    offset: _Bytes
    bytes: _Bytes
    checksums: str
    """CRC-32C of each chunk of ``Manifest.chunk_bytes`` bytes, as eight hexadecimal digits per
    chunk."""


class BuiltLengths(msgspec.Struct, frozen=True):
    """The longest prompt and the longest answer that an engine was built for, in tokens. No byte of
    the weights depends on them."""

    max_input_len: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_output_len: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def __str__(self) -> str:
        named = (("prompts", self.max_input_len), ("answers", self.max_output_len))
        return " and ".join(f"{name} of up to {most} tokens" for name, most in named if most)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about an artifact except the bytes of its weights."""

    model: str
    """Name of the model, for display."""
    model_path: str
    key: ArtifactKey
    created: str
    """Time of creation: ISO 8601, UTC."""
    bytes: _Bytes
    """Size of weights.bin."""
    chunk_bytes: Annotated[int, msgspec.Meta(ge=_ALIGNMENT, le=_MAX_CHUNK, multiple_of=_ALIGNMENT)]
    regions: tuple[Region, ...]
    lengths: BuiltLengths | None = None
    """The lengths that the engine was built for; None: any."""
    tuned: msgspec.Raw = NOTHING_TUNED
    """Tuning results, not parsed yet; see ``artifact.tuned``."""


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.format(msgspec.json.encode({"manifest": manifest}), indent=1)
    rest = body.removeprefix(b"{\n") + b"\n"
    return b'{"blake2b": "%s",\n' % _digest(rest) + rest


def decode_manifest(text: bytes) -> Manifest:
    """Parse a manifest. Raises ArtifactError if any byte differs from what was written."""
    first, _, rest = text.partition(b"\n")
    if first != b'{"blake2b": "%s",' % _digest(rest):
        raise ArtifactError(f"{MANIFEST} is damaged")
    try:
        manifest = msgspec.json.decode(b"{" + rest, type=_Sealed).manifest
    except (ValueError, RecursionError) as e:  # of msgspec, and of bytes that are no text
        raise ArtifactError(f"{MANIFEST} is of another format: {e}") from None
    for region in manifest.regions:
        chunks = -(-region.bytes // manifest.chunk_bytes)
        if len(region.checksums) != 8 * chunks:
            raise ArtifactError(
                f"{MANIFEST} makes no sense: {region.name!r:.80} of {region.bytes} bytes has "
                f"{len(region.checksums) // 8} checksums, not {chunks}"
            )
        if region.offset + region.bytes > manifest.bytes:
            raise ArtifactError(
                f"{MANIFEST} makes no sense: {region.name!r:.80} ends behind {WEIGHTS}"
            )
    return manifest


class _Sealed(msgspec.Struct, frozen=True):
    manifest: Manifest


def _digest(rest: bytes) -> bytes:
    return hashlib.blake2b(rest, digest_size=16).hexdigest().encode()


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of regions of these sizes, and the size of the file."""
    padded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
    offsets = list(itertools.accumulate(padded, initial=0))
    return offsets[:-1], offsets[-1]


def write_weights(folder: Path, packed: PackedRegions) -> tuple[Region, ...]:
    """Write weights.bin from the memory of ``packed``. Raises OSError."""
    offsets, size = layout(packed.sizes)
    places = [Place(i, offset) for i, offset in enumerate(offsets)]
    checksums: list[list[int]] = []
    fd = os.open(folder / WEIGHTS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        for batch in _batches(places, packed.sizes):
            checksums += packed.write(fd, batch, CHUNK_BYTES)
        os.fsync(fd)
    finally:
        os.close(fd)
    described = zip(packed.names, offsets, packed.sizes, checksums, strict=True)
    return tuple(Region(name, at, n, _hexadecimal(crcs)) for name, at, n, crcs in described)


def write_manifest(folder: Path, manifest: Manifest, name: str = MANIFEST) -> None:
    """Write the manifest into ``folder``, whose file ``name`` must not exist. Raises OSError."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(encode_manifest(manifest))
        file.flush()
        os.fsync(file.fileno())


class Artifact:
    """An artifact that was found: its manifest, and its weights open until :meth:`close`."""

    def __init__(self, path: Path, restored: Callable[[float], None] = lambda part: None) -> None:
        """Read the manifest and open the weights.

        ``restored`` is called with the part of the weights that is restored, from 0 to 1. Raises
        FileNotFoundError where there is no folder, ArtifactError where what is there cannot be
        used.
        """
        self.path = path
        self._restored = restored
        self._weights = -1
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as e:
            raise self._unusable(f"it cannot be opened: {e.strerror}") from e
        try:
            require_trusted(folder, "the folder")
            # Both through the one folder, which another process may be about to replace.
            self._weights = _open_own(WEIGHTS, folder)
            self.manifest = decode_manifest(_read_own(MANIFEST, folder))
        except ArtifactError as e:
            self.close()
            raise self._unusable(str(e)) from e
        except OSError as e:
            self.close()
            raise self._unusable(f"{e.filename} cannot be opened: {e.strerror}") from e
        finally:
            os.close(folder)

    def restore(self, regions: PackedRegions) -> None:
        """Fill every region and verify every checksum; see ``interface.weights.PackedWeights``."""
        manifest = self.manifest
        described = [(region.name, region.bytes) for region in manifest.regions]
        if described != list(zip(regions.names, regions.sizes, strict=True)):
            raise self._unusable("it holds other weights than the plan has")
        places = [Place(i, region.offset) for i, region in enumerate(manifest.regions)]
        try:
            size = os.fstat(self._weights).st_size
            if size != manifest.bytes:
                raise self._unusable(f"{WEIGHTS} has {size:,} bytes of {manifest.bytes:,}")
            self._restored(0.0)
            done = 0
            for batch in _batches(places, regions.sizes):
                checksums = regions.read(self._weights, batch, manifest.chunk_bytes)
                for place, found in zip(batch, checksums, strict=True):
                    region = manifest.regions[place.region]
                    if _hexadecimal(found) != region.checksums:
                        raise self._unusable(f"{WEIGHTS} is damaged in {region.name}")
                done += sum(regions.sizes[place.region] for place in batch)
                self._restored(done / sum(regions.sizes))
        except OSError as e:
            raise self._unusable(f"{WEIGHTS} cannot be read: {e.strerror}") from e
        except (ValueError, TypeError) as e:  # places that are in no file
            raise self._unusable(f"{MANIFEST} makes no sense: {e}") from e

    def close(self) -> None:
        if self._weights >= 0:
            os.close(self._weights)
            self._weights = -1

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _unusable(self, problem: str) -> ArtifactError:
        return ArtifactError(f"the engine artifact {self.path} cannot be used: {problem}")


def _hexadecimal(checksums: Iterable[int]) -> str:
    return "".join(f"{checksum:08x}" for checksum in checksums)


def _batches(places: Sequence[Place], sizes: Sequence[int]) -> Iterator[list[Place]]:
    """``places`` in runs of about a gigabyte."""
    batch: list[Place] = []
    total = 0
    for place in places:
        batch.append(place)
        total += sizes[place.region]
        if total >= _BATCH_BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _open_own(name: str, folder: int) -> int:
    fd = open_regular(name, dir_fd=folder)
    try:
        require_trusted(fd, name)
    except ArtifactError:
        os.close(fd)
        raise
    return fd


def _read_own(name: str, folder: int) -> bytes:
    with open(_open_own(name, folder), "rb") as file:
        text = file.read(_MAX_MANIFEST + 1)
    if len(text) > _MAX_MANIFEST:
        raise ArtifactError(f"{name} is damaged")
    return text
