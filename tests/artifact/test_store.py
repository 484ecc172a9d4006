"""The folder of artifacts: where it cannot be written, what is left in it, what is listed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from support.artifact_engines import start
from support.checkpoints import tiny_checkpoint
from support.needs import Need, lacking

from penstock.artifact import lock, store
from penstock.artifact.format import WEIGHTS, BuiltLengths
from penstock.artifact.root import default_root
from penstock.artifact.session import ArtifactSession
from penstock.artifact.store import ArtifactStore
from penstock.backends.cpu.backend import CpuBackend
from penstock.backends.cpu.regions import NativeRegions
from penstock.errors import ArtifactError


@pytest.fixture(autouse=True)
def _every_model_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.artifact.session.WORTHWHILE_S", 0.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "penstock-test", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        lacking(Need.PROGRAM, "mount")
    if done.returncode != 0:
        lacking(Need.RIGHT, f"mount: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fails_to_keep(model: Path, root: Path, words: str) -> None:
    """Both ways of keeping: by the way it is a note, asked for it is an error."""
    done = start(model, root, "worthwhile")
    (note,) = done.notes
    assert note.startswith("no engine artifact is kept: ")
    assert words in note
    assert "\n" not in note
    assert done.logits == start(model, None, artifact=False, keeping="never").logits
    with pytest.raises(ArtifactError, match=words):
        start(model, root, "always")


# --- where nothing can be written --------------------------------------------------------------


def test_a_full_disk_by_its_figures(
    configure: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, root = configure(hidden_size=192), small_disk / "engines"
    free = r"has [\d,]+ bytes free, too little to hold [\d,]+ bytes"
    monkeypatch.setattr(ArtifactSession, "require_room", lambda self: None)
    fails_to_keep(model, root, "bytes free, too little to hold")
    assert os.listdir(root) == []
    monkeypatch.undo()
    monkeypatch.setattr(CpuBackend, "bind", None)  # nothing is packed
    with pytest.raises(ArtifactError, match=f"{free}; make room there, or name a folder elsewhere"):
        start(model, root, "always")


def test_a_full_disk_that_said_otherwise(
    configure: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may fill it after we looked."""
    monkeypatch.setattr(ArtifactStore, "require_space", lambda *_: None)
    fails_to_keep(configure(hidden_size=192), small_disk / "engines", "No space left on device")
    assert os.listdir(small_disk / "engines") == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_write_that_fails(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(self: NativeRegions, fd: int, places: Any, chunk: int) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(NativeRegions, "write", fail)
    root = tmp_path / "engines"
    fails_to_keep(configure(), root, os.strerror(code))
    assert os.listdir(root) == []


def test_a_native_write_reports_its_errno(configure: Any, tmp_path: Path) -> None:
    """The errors above are what the native call raises."""
    from penstock.config import EngineConfig
    from penstock.engine.loader import load, plan_engine

    config = EngineConfig(model=str(configure()), load_format="dummy", artifact=False)
    executor = load(plan_engine(config))
    packed = executor.packed
    assert packed is not None
    full = os.open("/dev/full", os.O_WRONLY)
    empty = os.open(tmp_path / "empty", os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="No space left") as raised:
        packed.write(full, [(0, 0)], 4096)  # type: ignore[list-item]
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No data") as raised:
        packed.read(empty, [(0, 0)], 4096)  # type: ignore[list-item]
    assert raised.value.errno == errno.ENODATA
    with pytest.raises(OSError, match="Bad file descriptor"):
        packed.read(full, [(0, 0)], 4096)  # type: ignore[list-item]
    for places, chunk in (([(99, 0)], 4096), ([(-1, 0)], 4096), ([(0, -1)], 4096), ([(0, 0)], 0)):
        with pytest.raises(ValueError, match=r"region|chunk"):
            packed.read(empty, places, chunk)  # type: ignore[arg-type]
    os.close(full)
    os.close(empty)
    executor.close()


def test_room_is_left_on_the_disk(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.artifact.session.KEEP_FREE", 1.0)
    model, root = configure(), tmp_path / "engines"
    (note,) = start(model, root, "worthwhile").notes
    assert " GB free, too little to hold" in note
    assert "and leave" in note
    assert start(model, root, "always").phases[-1] == "keep artifact"


@pytest.mark.parametrize("path", ["/proc/penstock/engines", "/dev/null/engines"])
def test_a_folder_that_cannot_be(configure: Any, path: str) -> None:
    done = start(configure(), Path(path), "worthwhile")
    assert done.notes[-1].startswith("no engine artifact is kept: ")
    assert done.logits


def test_a_read_only_folder_is_read(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    good = start(model, root)
    mount = ["mount", "--bind", "-o", "ro", str(root), str(root)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        lacking(Need.RIGHT, f"mount: {done.stderr.strip()}")
    try:
        second = start(model, root)
        assert second.restored
        assert second.logits == good.logits
        fails_to_keep(configure("other", hidden_size=32), root, "Read-only file system")
    finally:
        subprocess.run(["umount", str(root)], check=True)
    assert len(os.listdir(root)) == 1


# --- what is in the folder ---------------------------------------------------------------------


def test_leftovers_of_the_dead_are_removed_and_the_living_are_left(
    configure: Any, tmp_path: Path
) -> None:
    root = tmp_path / "engines"
    for name in ("dead", "alive"):
        partial = root / f"{name}-int4-amx-0123456789ab.partial"
        partial.mkdir(parents=True)
        (partial / WEIGHTS).write_bytes(b"half")
    (root / "dead-int4-amx-0123456789ab.discarded").mkdir()
    (root / "dead-int4-amx-0123456789ab.lock").touch()
    (root / "a user's own.partial").mkdir()
    with lock.locked(root / "alive-int4-amx-0123456789ab.lock", wait=False) as mine:
        assert mine
        start(configure(), root)
        left = {p.name for p in root.iterdir() if not p.name.startswith("tiny-")}
        assert left == {
            "alive-int4-amx-0123456789ab.partial",
            "alive-int4-amx-0123456789ab.lock",
            "a user's own.partial",
        }
        assert len(ArtifactStore(root).entries()) == 1


def test_an_artifact_of_before_keys_had_all_their_fields(configure: Any, tmp_path: Path) -> None:
    """Its key reads as today's, by the defaults of the fields; its name has another digest."""
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    (kept,) = root.glob("tiny-*")
    old = kept.rename(kept.with_name(kept.name.rpartition("-")[0] + "-0123456789ab"))
    done = start(model, root)
    assert not done.restored
    note = f"of this model's other engine artifacts, {old.name} is of an earlier form of artifacts"
    assert note in done.notes


def test_artifacts_of_weights_that_were_replaced_are_removed(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    shutil.copytree(tiny_checkpoint("llama"), model)
    shutil.copytree(tiny_checkpoint("llama"), other)
    tensors = load_file(other / "model.safetensors")
    save_file({name: values + 1 for name, values in tensors.items()}, other / "model.safetensors")
    root = tmp_path / "engines"
    for folder in (model, other):
        for quantization in ("none", "int8"):
            start(folder, root, load_format="auto", quantization=quantization)
    assert len(list(root.glob("*-*"))) == 4
    shutil.copy(tiny_checkpoint("llama", seed=1) / "model.safetensors", model)
    done = start(model, root, load_format="auto")
    assert not done.restored
    assert "is of other weight files" in done.notes[0]
    assert done.notes[1].startswith("wrote ")
    assert done.notes[2].startswith("removed model-")
    names = sorted(p.name for p in root.glob("*-*"))
    # Of the old weights only the other quantization's is left: its turn comes when it is asked for.
    assert len(names) == 4
    assert start(other, root, load_format="auto").restored


def test_dummy_weights_of_two_seeds_live_together(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    for seed in (0, 1):
        start(model, root, seed=seed)
    for seed in (0, 1):
        assert start(model, root, seed=seed).restored


def test_list_and_remove(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    kept = ArtifactStore(root)
    assert kept.entries() == []
    for quantization in ("none", "int8", "int4"):
        start(model, root, quantization=quantization)
    (root / "notes.txt").touch()
    bf16, int4, int8 = kept.entries()
    assert [e.name.rpartition("-")[0].rpartition("-")[0] for e in (bf16, int4, int8)] == [
        "tiny-bfloat16",
        "tiny-int4",
        "tiny-int8",
    ]
    assert bf16.bytes > int8.bytes > int4.bytes
    assert int4.manifest is not None
    assert int4.manifest.model_path == str(model)
    assert int4.bytes == sum(p.stat().st_size for p in (root / int4.name).iterdir())
    (root / int8.name / "manifest.json").write_text("{}")
    assert "damaged" in kept.entries()[2].problem
    assert kept.remove(int8.name).name == int8.name
    assert kept.remove(int4.name.rpartition("-")[2]).name == int4.name
    for name in (int4.name, "", "tiny", "../" + bf16.name, "notes.txt"):
        with pytest.raises(ArtifactError, match="has no engine artifact"):
            kept.remove(name)
    assert sorted(os.listdir(root)) == ["notes.txt", bf16.name]


def test_a_name_for_the_folder(configure: Any, tmp_path: Path) -> None:
    hub = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots"
    hub.mkdir(parents=True)
    model = configure("odd näme (1)")
    model.rename(hub / "abcdef")
    root = tmp_path / "engines"
    start(hub / "abcdef", root)
    start(configure("odd näme (2)", hidden_size=64), root)
    first, second = sorted(os.listdir(root))
    assert first.startswith("Qwen--Qwen3-0.6B-bfloat16-")
    assert second.startswith("odd-n-me-2-bfloat16-")
    assert start(hub / "abcdef", root).restored


def test_the_default_folder() -> None:
    home = os.path.expanduser("~")
    assert default_root({"PENSTOCK_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c/engines")
    assert default_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/penstock/engines")
    # The specification has relative paths ignored.
    assert default_root({"XDG_CACHE_HOME": "x"}) == Path(home) / ".cache/penstock/engines"
    assert default_root({}) == Path(home) / ".cache/penstock/engines"


def test_no_home_no_artifacts(
    configure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    model = configure()
    assert start(model, None, "worthwhile").phases == ["open weights", "pack weights"]
    with pytest.raises(ArtifactError, match="there is nothing to keep"):
        start(model, None, "always")


# --- the lock ----------------------------------------------------------------------------------


def test_a_lock_excludes_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with lock.locked(path, wait=False) as mine:
        assert mine
        with lock.locked(path, wait=False) as theirs:
            assert not theirs
    assert not path.exists()
    with lock.locked(path, wait=True) as mine:
        assert mine


def test_a_lock_file_that_was_removed_excludes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's owner may have removed it between its opening and its locking."""
    path = tmp_path / "x.lock"
    flock, calls = lock.fcntl.flock, []

    def remove_first(fd: int, how: int) -> None:
        if not calls:
            path.unlink()
        calls.append(how)
        flock(fd, how)

    monkeypatch.setattr(lock.fcntl, "flock", remove_first)
    with lock.locked(path, wait=False) as mine:
        assert mine
        assert len(calls) == 2
        with lock.locked(path, wait=False) as theirs:
            assert not theirs


def test_lengths_are_set_once_the_other_process_is_done(configure: Any, tmp_path: Path) -> None:
    """Several builders of one artifact may change its manifest at the same time."""
    model, root = configure(), tmp_path / "engines"
    start(model, root, "always")
    artifacts = ArtifactStore(root)
    (entry,) = artifacts.entries()
    lengths = BuiltLengths(max_input_len=64)
    with ThreadPoolExecutor(1) as threads:
        with lock.locked(root / f"{entry.name}.lock", wait=False):
            waiting = threads.submit(artifacts.set_lengths, entry.name, lengths)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
        waiting.result(timeout=60)
    (entry,) = artifacts.entries()
    assert entry.manifest is not None
    assert entry.manifest.lengths == lengths


def test_another_process_at_work_is_no_error(configure: Any, tmp_path: Path) -> None:
    model, root = configure(), tmp_path / "engines"
    start(model, root)
    (name,) = os.listdir(root)
    ArtifactStore(root).remove(name)
    with lock.locked(root / f"{name}.lock", wait=False):
        done = start(model, root, "worthwhile")
    assert done.notes == ["no engine artifact is kept: another process is writing it"]
    assert store.ArtifactStore(root).entries() == []
