"""Whatever is wrong with an artifact is noticed and said, and the next start has a good one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.artifact_engines import start

from penstock.artifact.files import remove_tree
from penstock.artifact.format import (
    MANIFEST,
    WEIGHTS,
    Artifact,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from penstock.errors import ArtifactError


def flip(path: Path, at: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ mask]))


def edit(folder: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Rewrite the manifest, with a seal that is right."""
    manifest = change(decode_manifest((folder / MANIFEST).read_bytes()))
    (folder / MANIFEST).write_bytes(encode_manifest(manifest))


def with_key(**changes: Any) -> Callable[[Manifest], Manifest]:
    replace = msgspec.structs.replace
    return lambda manifest: replace(manifest, key=replace(manifest.key, **changes))


def truncate(path: Path, size: int) -> None:
    os.truncate(path, path.stat().st_size + size if size < 0 else size)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "first weight": (lambda f: flip(f / WEIGHTS, 0), "damaged in embed"),
    "high bit": (lambda f: flip(f / WEIGHTS, 4097, 0x80), "damaged in embed"),
    "truncated weights": (lambda f: truncate(f / WEIGHTS, -1), "has .* bytes of"),
    "empty weights": (lambda f: truncate(f / WEIGHTS, 0), "has 0 bytes of"),
    "longer weights": (lambda f: truncate(f / WEIGHTS, 1 << 24), "has .* bytes of"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "No such file"),
    "weights are a folder": (
        lambda f: ((f / WEIGHTS).unlink(), (f / WEIGHTS).mkdir()),
        "it is a folder, not a regular file",
    ),
    "seal": (lambda f: flip(f / MANIFEST, 15), "manifest.json is damaged"),
    "manifest's first bytes": (lambda f: flip(f / MANIFEST, 0), "manifest.json is damaged"),
    "manifest's last byte": (lambda f: flip(f / MANIFEST, -1), "manifest.json is damaged"),
    "truncated manifest": (lambda f: truncate(f / MANIFEST, -3), "manifest.json is damaged"),
    "empty manifest": (lambda f: truncate(f / MANIFEST, 0), "manifest.json is damaged"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "manifest.json cannot be opened"),
    "other version": (
        lambda f: edit(f, with_key(penstock="0.0.9")),
        r"is of penstock 0\.0\.9, not \d",
    ),
    "other instructions": (lambda f: edit(f, with_key(isa="sse9")), "is of isa sse9, not "),
    "other layout": (lambda f: edit(f, with_key(layout=999)), "is of layout 999, not "),
    "other format": (lambda f: edit(f, with_key(format=7)), "is of format 7, not 2"),
    "other plan": (lambda f: edit(f, with_key(plan="0")), "is of another plan"),
    "fewer regions": (
        lambda f: edit(f, lambda m: msgspec.structs.replace(m, regions=m.regions[:-1])),
        "holds other weights",
    ),
    "fewer checksums": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], checksums=""), *m.regions[1:])
            ),
        ),
        "manifest.json makes no sense: 'embed' of .* bytes has 0 checksums",
    ),
    "a place before the file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=-1), *m.regions[1:])
            ),
        ),
        r"another format: .*offset",
    ),
    "a place beyond the file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=1 << 40), *m.regions[1:])
            ),
        ),
        "'embed' ends behind weights.bin",
    ),
    "a place beyond any file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=1 << 63), *m.regions[1:])
            ),
        ),
        r"another format: .*offset",
    ),
    "no chunks": (
        lambda f: edit(f, lambda m: msgspec.structs.replace(m, chunk_bytes=0)),
        r"another format: .*chunk_bytes",
    ),
    "a file in its place": (
        lambda f: (shutil.rmtree(f), f.write_bytes(b"x")),
        "cannot be opened: Not a directory",
    ),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_noticed_and_repaired(configure: Any, tmp_path: Path, case: str) -> None:
    damage, words = DAMAGE[case]
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)
    (folder,) = root.iterdir()
    damage(folder)
    again = start(model, root, "worthwhile")
    assert again.phases == ["open weights", "pack weights", "keep artifact"]
    assert again.logits == good.logits
    problem, wrote = again.notes
    assert problem.endswith("; the weights are packed again")
    assert str(folder) in problem
    assert re.search(words, problem), problem
    assert wrote.startswith("wrote ")
    third = start(model, root)
    assert third.restored
    assert third.logits == good.logits
    assert [p.name for p in root.iterdir()] == [folder.name]


def test_damage_under_another_name(configure: Any, tmp_path: Path) -> None:
    """As of a model whose folder has been renamed: it is replaced, not met again at each start."""
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    (folder,) = root.iterdir()
    other = folder.rename(root / f"a-{folder.name}")
    assert start(model, root).restored
    flip(other / WEIGHTS, 0)
    assert not start(model, root).restored
    assert [p.name for p in root.iterdir()] == [folder.name]
    assert start(model, root).restored


@pytest.mark.slow
def test_a_byte_of_any_region(configure: Any, tmp_path: Path) -> None:
    """The first, a middle and the last byte of each; and the message names the region."""
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)
    (folder,) = root.iterdir()
    manifest = decode_manifest((folder / MANIFEST).read_bytes())
    assert len(manifest.regions) > 10
    weights = folder / WEIGHTS
    for region in manifest.regions:
        for at in {0, region.bytes // 2, region.bytes - 1}:
            flip(weights, region.offset + at, 0x10)
            done = start(model, root, "never")
            assert not done.restored
            assert f"weights.bin is damaged in {region.name};" in done.notes[0]
            assert done.logits == good.logits
            flip(weights, region.offset + at, 0x10)
    assert start(model, root, "never").restored


def test_any_byte_of_the_manifest(configure: Any, tmp_path: Path) -> None:
    root = tmp_path / "engines"
    start(configure(), root)
    (folder,) = root.iterdir()
    text = (folder / MANIFEST).read_bytes()
    assert decode_manifest(text).model == "tiny"
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 1
        with pytest.raises(ArtifactError):
            decode_manifest(bytes(changed))
    json.loads(text)  # for people and their tools


def test_a_folder_that_vanishes_is_no_damage(configure: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Artifact(tmp_path / "absent")
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    shutil.rmtree(root)
    assert start(model, root).notes[0].startswith("wrote ")


def test_a_read_error_falls_back(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a failing disk: the executor that was half filled is not the one that runs."""
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)

    from penstock.backends.cpu.regions import NativeRegions

    read = NativeRegions.read

    def fail(self: NativeRegions, fd: int, places: Any, chunk: int) -> Any:
        read(self, fd, [(region, 0) for region, _ in places], chunk)  # the wrong bytes, then
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(NativeRegions, "read", fail)
    done = start(model, root, "never")
    assert "weights.bin cannot be read: Input/output error" in done.notes[0]
    assert done.logits == good.logits


def kept(configure: Any, root: Path) -> Path:
    """The folder of an artifact of a model without weights."""
    start(configure(), root)
    (folder,) = [path for path in root.iterdir() if path.is_dir()]
    return folder


def test_only_their_owner_can_read_artifacts(configure: Any, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = kept(configure, tmp_path / "engines")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["", MANIFEST, WEIGHTS])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_packed_again(
    configure: Any, tmp_path: Path, name: str, mode: int
) -> None:
    folder = kept(configure, tmp_path / "engines")
    path = folder / name
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    again = start(tmp_path / "tiny", folder.parent)
    assert not again.restored
    assert "can be written by others" in again.notes[0]
    assert start(tmp_path / "tiny", folder.parent).restored


@pytest.mark.parametrize("name", ["", MANIFEST, WEIGHTS])
def test_what_belongs_to_somebody_else_is_packed_again(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = kept(configure, tmp_path / "engines")
    wanted = (folder / name).stat().st_ino
    plain = os.fstat

    def fstat(fd: int) -> os.stat_result:
        status = plain(fd)
        if status.st_ino == wanted:
            values = list(status)
            values[stat.ST_UID] = 54321
            return os.stat_result(values)
        return status

    monkeypatch.setattr("penstock.artifact.files.os.fstat", fstat)
    with pytest.raises(ArtifactError, match="belongs to user 54321"):
        Artifact(folder)


def test_a_folder_that_everybody_can_write(configure: Any, tmp_path: Path) -> None:
    root = tmp_path / "engines"
    kept(configure, root)
    root.chmod(0o777)
    done = start(tmp_path / "tiny", root, "worthwhile")
    assert not done.restored
    assert "everybody can write the folder" in done.notes[0]
    root.chmod(0o1777)  # as /tmp is: nobody but its owner can put another in an artifact's place
    assert start(tmp_path / "tiny", root).restored


SENSELESS = {
    "chunks of no bytes": {"chunk_bytes": 0},
    "negative chunks": {"chunk_bytes": -4096},
    "chunks of a byte": {"chunk_bytes": 1},
    "chunks of an exabyte": {"chunk_bytes": 1 << 60},
    "other chunks": {"chunk_bytes": 8192},
    "negative size": {"bytes": -1},
    "size of no file": {"bytes": 1 << 63},
    "small size": {"bytes": 4096},
}


@pytest.mark.parametrize("case", SENSELESS)
def test_numbers_that_make_no_sense(configure: Any, tmp_path: Path, case: str) -> None:
    folder = kept(configure, tmp_path / "engines")
    edit(folder, lambda m: msgspec.structs.replace(m, **SENSELESS[case]))
    with pytest.raises(ArtifactError, match=r"makes no sense|another format"):
        Artifact(folder)
    assert not start(tmp_path / "tiny", folder.parent).restored
    assert start(tmp_path / "tiny", folder.parent).restored


@pytest.mark.parametrize(
    "changes", [{"offset": -4096}, {"offset": 1 << 50}, {"bytes": 1 << 50}, {"checksums": "0" * 7}]
)
def test_regions_that_make_no_sense(
    configure: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = kept(configure, tmp_path / "engines")
    replace = msgspec.structs.replace
    edit(folder, lambda m: replace(m, regions=(replace(m.regions[0], **changes), *m.regions[1:])))
    with pytest.raises(ArtifactError, match=r"makes no sense|another format"):
        Artifact(folder)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_file(configure: Any, tmp_path: Path, name: str, kind: str) -> None:
    folder = kept(configure, tmp_path / "engines")
    path = folder / name
    if kind == "fifo":
        fifo(path)
    else:
        path.unlink()
        path.mkdir() if kind == "folder" else path.symlink_to("/dev/zero")
    again = start(tmp_path / "tiny", folder.parent)
    assert not again.restored
    assert "not a regular file" in again.notes[0]
    assert start(tmp_path / "tiny", folder.parent).restored


@pytest.mark.parametrize("text", [b'"\xff\xfe"', b"[" * 100_000, b'{"manifest": 1e999}'])
def test_a_sealed_manifest_of_anything(configure: Any, tmp_path: Path, text: bytes) -> None:
    folder = kept(configure, tmp_path / "engines")
    rest = b'"manifest": ' + text + b"\n}\n"
    seal = hashlib.blake2b(rest, digest_size=16).hexdigest().encode()
    (folder / MANIFEST).write_bytes(b'{"blake2b": "%s",\n' % seal + rest)
    with pytest.raises(ArtifactError, match="another format"):
        Artifact(folder)


def test_a_link_in_place_of_a_lock(configure: Any, tmp_path: Path) -> None:
    root = tmp_path / "engines"
    folder = kept(configure, root)
    (root / f"{folder.name}.lock").symlink_to(tmp_path / "elsewhere")
    remove_tree(folder)
    with pytest.raises(ArtifactError, match="symbolic links"):
        start(tmp_path / "tiny", root)
    assert not (tmp_path / "elsewhere").exists()
