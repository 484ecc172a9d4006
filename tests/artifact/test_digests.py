"""Weights are hashed when they are new or changed, and not at every start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.artifact_engines import Start, start
from support.checkpoints import tiny_checkpoint

from penstock.artifact import session
from penstock.artifact.digests import DIGESTS, DigestFile
from penstock.errors import WeightError
from penstock.weights import identity
from penstock.weights.identity import FileStamp, identify, stamped_weights, weight_files
from penstock.weights.safetensors import SafetensorsFile

Hashed = list[int]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama", dtype="bfloat16"), folder)
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Sizes of the files that were read to be hashed, as if all were changed long ago."""
    sizes: Hashed = []
    plain = identity._hash

    def counting(fd: int, size: int) -> str:
        sizes.append(size)
        return plain(fd, size)

    monkeypatch.setattr(identity, "_hash", counting)
    monkeypatch.setattr(identity, "_CONCLUSIVE_NS", -(10**18))
    return sizes


def begin(model: Path, root: Path) -> Start:
    return start(model, root, "always", load_format="auto")


def change(path: Path) -> None:
    """The embedding of token 1, with the file's size and time of modification as they were."""
    times = path.stat()
    embed = SafetensorsFile(path).tensors["model.embed_tokens.weight"]
    with path.open("r+b") as file:
        file.seek(embed.start + 2 * embed.shape[1])
        file.write(b"\x80\x3f")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert path.stat().st_size == times.st_size


@pytest.mark.slow
def test_a_changed_value_is_never_served_from_before(model: Path, tmp_path: Path) -> None:
    root = tmp_path / "engines"
    first = begin(model, root)
    assert begin(model, root).restored
    change(model / "model.safetensors")
    after = begin(model, root)
    assert not after.restored
    assert after.logits != first.logits
    assert begin(model, root).logits == after.logits


def test_an_unchanged_file_is_read_once(model: Path, tmp_path: Path, hashed: Hashed) -> None:
    root = tmp_path / "engines"
    begin(model, root)
    size = (model / "model.safetensors").stat().st_size
    assert hashed == [size]
    assert begin(model, root).restored
    assert hashed == [size]
    os.utime(model / "model.safetensors", ns=(0, 0))  # the same weights
    assert begin(model, root).restored
    assert hashed == [size, size]
    shutil.copytree(model, tmp_path / "copy", copy_function=shutil.copy2)
    assert begin(tmp_path / "copy", root).restored
    assert hashed == [size, size, size]
    assert begin(tmp_path / "copy", root).restored
    assert begin(model, root).restored
    assert len(hashed) == 3


def test_nothing_is_hashed_where_nothing_can_be_found(
    model: Path, tmp_path: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WORTHWHILE_S", 1e9)
    start(model, tmp_path / "engines", "worthwhile", load_format="auto")
    start(model, None, load_format="auto", artifact=False, keeping="never")
    assert hashed == []
    assert not (tmp_path / "engines").exists()


def test_a_file_that_was_just_changed_is_hashed_again(model: Path, tmp_path: Path) -> None:
    """Its stamp need not tell of one more change in the same tick."""
    digests = DigestFile(tmp_path)
    path = model / "model.safetensors"
    os.utime(path)
    digests.remember(FileStamp.of(path.stat()), "0" * 64)
    (file,) = identify(stamped_weights(model), digests)
    assert file.digest != "0" * 64


def test_a_file_that_changes_while_it_is_hashed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model / "model.safetensors"
    plain = identity._hash

    def hash_and_change(fd: int, size: int) -> str:
        digest = plain(fd, size)
        change(path)
        return digest

    monkeypatch.setattr(identity, "_hash", hash_and_change)
    digests = DigestFile(tmp_path)
    before = stamped_weights(model)
    with pytest.raises(WeightError, match="changed while it was being read"):
        identify(before, digests)
    assert digests.find(before[0].stamp) is None
    with pytest.raises(WeightError, match="changed while it was being read"):
        identify(before, digests)


def test_the_hubs_links(model: Path, tmp_path: Path, hashed: Hashed) -> None:
    """Snapshots are links to blobs, whose stamps count."""
    cache = tmp_path / "models--a--b"
    (cache / "blobs").mkdir(parents=True)
    snapshots = [cache / "snapshots" / name for name in ("one", "two")]
    for file in model.iterdir():
        shutil.copy(file, cache / "blobs" / file.name)
        for snapshot in snapshots:
            snapshot.mkdir(parents=True, exist_ok=True)
            (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    begin(snapshots[0], tmp_path / "engines")
    assert begin(snapshots[1], tmp_path / "engines").restored
    assert len(hashed) == 1


@pytest.mark.parametrize("size", [0, 1, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, (5 << 23) + 7])
def test_the_digest_is_of_every_byte_and_in_order(tmp_path: Path, size: int) -> None:
    import hashlib

    content = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(content)
    pieces = [content[i : i + (1 << 23)] for i in range(0, size, 1 << 23)]
    expected = hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in pieces)).hexdigest()
    fd = os.open(path, os.O_RDONLY)
    assert identity._hash(fd, size) == expected
    os.close(fd)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"\xff\xfe["),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.write_bytes(b""),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.chmod(0o666),
    ],
)
def test_what_is_remembered_is_trusted_only_as_it_was_written(
    model: Path, tmp_path: Path, hashed: Hashed, spoil: Callable[[Path], object]
) -> None:
    root = tmp_path / "engines"
    begin(model, root)
    assert (root / DIGESTS).stat().st_mode & 0o777 == 0o600
    spoil(root / DIGESTS)
    assert begin(model, root).restored
    assert len(hashed) == 2


def test_a_fifo_in_place_of_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    with pytest.raises(WeightError, match="not a regular file"):
        weight_files(model)


def test_what_killed_processes_left_is_in_nobodys_way(tmp_path: Path) -> None:
    stamp = FileStamp(*range(len(FileStamp.__struct_fields__)))
    left = [tmp_path / f"{DIGESTS}.{name}" for name in (os.getpid(), "old")]
    for path in left:
        path.write_bytes(b"[")
    os.utime(left[1], (0, 0))
    kept = DigestFile(tmp_path)
    kept.remember(stamp, "0" * 64)
    kept.save()
    assert DigestFile(tmp_path).find(stamp) == "0" * 64
    assert (tmp_path / DIGESTS).stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [tmp_path / DIGESTS, left[0]]
