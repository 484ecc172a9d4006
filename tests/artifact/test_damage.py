"""Whatever is wrong with an artifact is noticed and said, and the next start has a good one."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from artifact_engines import start

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
        "cannot be read: Is a directory|bytes of",
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
    "other format": (lambda f: edit(f, with_key(format=7)), "is of format 7, not 1"),
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
        "damaged in embed",
    ),
    "a place before the file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=-1), *m.regions[1:])
            ),
        ),
        "manifest.json makes no sense",
    ),
    "a place beyond the file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=1 << 40), *m.regions[1:])
            ),
        ),
        "cannot be read: No data available",
    ),
    "a place beyond any file": (
        lambda f: edit(
            f,
            lambda m: msgspec.structs.replace(
                m, regions=(msgspec.structs.replace(m.regions[0], offset=1 << 63), *m.regions[1:])
            ),
        ),
        "manifest.json makes no sense",
    ),
    "no chunks": (
        lambda f: edit(f, lambda m: msgspec.structs.replace(m, chunk_bytes=0)),
        "manifest.json makes no sense",
    ),
    "a file in its place": (
        lambda f: (shutil.rmtree(f), f.write_bytes(b"x")),
        "cannot be opened: Not a directory",
    ),
}


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

    from penstock.backends.cpu.pack import NativeRegions

    read = NativeRegions.read

    def fail(self: NativeRegions, fd: int, places: Any, chunk: int) -> Any:
        read(self, fd, [(region, 0) for region, _ in places], chunk)  # the wrong bytes, then
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(NativeRegions, "read", fail)
    done = start(model, root, "never")
    assert "weights.bin cannot be read: Input/output error" in done.notes[0]
    assert done.logits == good.logits
