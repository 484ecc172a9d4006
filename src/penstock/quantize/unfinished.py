"""A checkpoint that is being made: a folder which has all that has been done, and becomes the
checkpoint once everything has."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.artifact.files import remove_tree
from penstock.errors import ConfigError
from penstock.models.json_objects import read_json_object
from penstock.quantize.record import RECORD, differing
from penstock.quantize.tensor_file import NewTensor, write_tensors
from penstock.weights.safetensors import INDEX, SafetensorsFile
from penstock.written_file import sync_folder, write_json

_SUFFIX: Final = ".partial"
_COPIED: Final = (".json", ".jinja", ".model", ".txt", ".md", ".py", ".tiktoken", ".spm", "")
"""What the names of files end with that a checkpoint has besides weights: of tokenizers, chat
templates, code and licences."""
_ANEW: Final = ("config.json", RECORD)
"""Files that are made anew."""


def beside_weights(folder: Path) -> list[Path]:
    """The files of a checkpoint that a quantized one has, too."""
    return [
        each
        for each in sorted(folder.iterdir())
        if each.is_file()
        and each.suffix in _COPIED
        and each.name not in _ANEW
        and not each.name.endswith(".index.json")
        and not each.name.startswith(".")
    ]


def require_resumable(out: Path, record: Mapping[str, object]) -> None:
    """Raise ConfigError where a run for the folder ``out`` was interrupted whose record is another
    than this."""
    folder = out.with_name(out.name + _SUFFIX)
    if not (folder / RECORD).exists():
        return
    changed = differing(read_json_object(folder / RECORD, ConfigError), record)
    if changed:
        raise ConfigError(
            f"{folder} has what was done with another {' and '.join(changed)}; give the same "
            "options to go on, --restart to begin anew, or name another --out"
        )


class Unfinished:
    """The folder ``OUT.partial``, which one process has at a time."""

    def __init__(
        self, out: Path, record: Mapping[str, object], shards: int, restart: bool = False
    ) -> None:
        """Make the folder, or take up what an interrupted run has left of the same ``record``.

        ``shards`` is the number of files that weights will be in. ``restart`` forgets what is
        left. Raises ConfigError where the checkpoint is there already, where another process works
        on it, and where what was left is of something else.
        """
        if os.path.lexists(out):
            raise ConfigError(f"--out {out} is there already; remove it, or name another folder")
        if not out.parent.is_dir():
            raise ConfigError(f"--out {out}: there is no folder {out.parent}; make it first")
        self._out, self._shards = out, shards
        self.folder = out.with_name(out.name + _SUFFIX)
        if self.folder.is_symlink():
            raise ConfigError(f"--out {out}: {self.folder} is a link; remove it, or name another")
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--out {out}: cannot make {self.folder}: {error.strerror}; name a folder elsewhere"
            ) from error
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._take(record, restart)
        except BaseException:
            self.close()
            raise

    def _take(self, record: Mapping[str, object], restart: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"--out {self._out}: another process works on it, in {self.folder}; let it finish, "
                "or name another folder"
            ) from error
        path = self.folder / RECORD
        if not path.exists():
            begun = _partial(path).name  # of a run that ended before it had written its record
            if any(each.name != begun for each in self.folder.iterdir()):
                raise ConfigError(
                    f"--out {self._out}: {self.folder} is somebody else's; remove it, or name "
                    "another folder"
                )
        elif not restart:
            require_resumable(self._out, record)
            return
        # The record comes last, and goes last: without one the folder is nobody's.
        for each in self.folder.iterdir():
            if each.name != RECORD:
                remove_tree(each)
        _write_synced(path, record)

    @property
    def shards(self) -> int:
        """The number of files that weights are in."""
        return self._shards

    def shard(self, index: int) -> Path:
        """The file of some of the tensors, once they are all there."""
        return self.folder / f"model-{index + 1:05}-of-{self._shards:05}.safetensors"

    def hidden(self, index: int) -> Path:
        """The file of what a layer is given."""
        return self.folder / f"hidden-{index:05}.float32"

    @property
    def sweep(self) -> Path:
        """The file of what rounding loses, once all has been measured."""
        return self.folder / "hidden-sweep.json"

    def sweep_rows(self, index: int) -> Path:
        """The file of what a layer is given while that is measured."""
        return self.folder / f"hidden-sweep-{index:05}.float32"

    def sweep_errors(self, index: int) -> Path:
        """The file of what has been measured of the layers before one."""
        return self.folder / f"hidden-sweep-{index:05}.json"

    def kept(self, index: int) -> Path:
        """The file of what training needs of a layer's matrices."""
        return self.folder / f"hidden-kept-{index:05}.safetensors"

    @property
    def training(self) -> Path:
        """The file of a training that is not done."""
        return self.folder / "hidden-training.safetensors"

    @property
    def trained(self) -> Path:
        """The file of the tensors that a training has changed, once it is done."""
        return self.folder / "hidden-trained.safetensors"

    @property
    def outcome(self) -> Path:
        """The file of what it has gained, which is there once they are."""
        return self.folder / "hidden-trained.json"

    def recorded(self, entry: str) -> Mapping[str, object] | None:
        """An entry that :meth:`finish` has added to the record before it was interrupted."""
        found = read_json_object(self.folder / RECORD, ConfigError).get(entry)
        return found if isinstance(found, dict) else None

    def write_synced(self, path: Path, document: object) -> None:
        """Write a JSON file of the folder, which is there in full or not at all. Raises OSError
        with its name."""
        _write_synced(path, document)

    def write_shard(self, index: int, tensors: Sequence[NewTensor]) -> None:
        """Write a layer's tensors. What it was given is not needed any more."""
        write_tensors(self.shard(index), tensors)
        self.hidden(index).unlink(missing_ok=True)

    def replace_tensors(self, tensors: Mapping[str, NewTensor]) -> None:
        """Put these tensors, by their names, in the place of those that shards have. May be
        interrupted and called again with the same."""
        for path in map(self.shard, range(self._shards)):
            file = SafetensorsFile(path)
            if tensors.keys().isdisjoint(file.tensors):
                continue
            new = [
                tensors[name] if name in tensors else _as_it_is(file, name) for name in file.tensors
            ]
            write_tensors(path, new)

    def finish(
        self, source: Path, config: Mapping[str, object], figures: Mapping[str, object]
    ) -> int:
        """Add what a checkpoint has besides weights, files of ``source`` among them, and
        ``figures`` to its record, as entries of it, and give the folder its name. Returns the bytes
        of all weights. May be interrupted and called again."""
        places, size = self._tensors()
        for each in beside_weights(source):
            shutil.copyfile(each, self.folder / each.name)
            with open(self.folder / each.name, "rb") as copied:
                os.fsync(copied.fileno())
        _write_synced(self.folder / "config.json", config)
        index = {"metadata": {"total_size": size}, "weight_map": places}
        _write_synced(self.folder / INDEX, index)
        if figures:
            record = read_json_object(self.folder / RECORD, ConfigError)
            _write_synced(self.folder / RECORD, {**record, **figures})
        for left in self.folder.glob("hidden-*"):  # of a run that ended right behind its layer
            left.unlink()
        sync_folder(self.folder)
        if os.path.lexists(self._out):  # a rename would replace an empty folder
            raise ConfigError(f"--out {self._out} is there now; rename {self.folder} yourself")
        os.rename(self.folder, self._out)
        sync_folder(self._out.parent)
        return size

    def _tensors(self) -> tuple[dict[str, str], int]:
        """The file of each tensor, and the bytes of all."""
        places: dict[str, str] = {}
        size = 0
        for path in map(self.shard, range(self._shards)):
            tensors = SafetensorsFile(path).tensors
            places |= dict.fromkeys(tensors, path.name)
            size += sum(tensor.stop - tensor.start for tensor in tensors.values())
        return places, size

    def close(self) -> None:
        """Let go of the folder, which stays as it is."""
        os.close(self._lock)


def _as_it_is(file: SafetensorsFile, name: str) -> NewTensor:
    tensor = file.tensors[name]
    return NewTensor(name, tensor.dtype, tensor.shape, file.raw(name))


def _partial(path: Path) -> Path:
    """The file that becomes ``path`` once it is whole."""
    return path.with_name(path.name + _SUFFIX)


def _write_synced(path: Path, document: object) -> None:
    """Write a JSON file that is there in full or not at all. Raises OSError with its name."""
    partial = _partial(path)
    write_json(partial, document)
    with open(partial, "rb") as written:
        os.fsync(written.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)
