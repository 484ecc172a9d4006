"""What the variants of a comparison are judged by, and which figures of an earlier run hold yet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.quantize.comparison import Variant
from penstock.quantize.record import RECORD

_IN_WORDS: Final = {
    "model": "model",
    "text": "text",
    "windows": "number of windows",
    "window": "length of windows",
    "tasks": "tasks",
    "max_questions": "number of questions",
    "lm_eval": "version of lm-evaluation-harness",
    "penstock": "version of Penstock",
    "cpu": "CPU",
    "backend": "backend",
    "threads": "number of threads",
}


class Yardstick(msgspec.Struct, frozen=True, kw_only=True):
    """All that the figures of a checkpoint depend on, besides the checkpoint."""

    model: tuple[str, ...]
    """The files of the weights from which divergences are taken, with their digests."""
    text: str
    """SHA-256 of the text."""
    windows: int
    window: int
    """Tokens of each of them."""
    tasks: tuple[str, ...]
    """Names of tasks, and digests of files that have or describe some."""
    max_questions: int | None
    lm_eval: str | None
    """The version of lm-evaluation-harness, if it asks some."""
    penstock: str
    cpu: str
    backend: str
    threads: int

    def differing(self, other: Yardstick) -> list[str]:
        """What two are not the same in, in words."""
        return [
            words
            for name, words in _IN_WORDS.items()
            if getattr(self, name) != getattr(other, name)
        ]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """``comparison.json``, as far as it is read here."""

    judged_by: Yardstick
    variants: tuple[Variant, ...]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run has left of a comparison."""

    variants: dict[str, Variant] = {}
    """The model as it is and the variants whose figures hold yet, by their names."""
    dropped: str | None = None
    """Why others hold no more, if there are any."""

    @classmethod
    def read(cls, path: Path, yardstick: Yardstick) -> Kept:
        """Those of ``path`` that were judged by the same, of checkpoints that are still beside it
        as they were."""
        try:
            document = msgspec.json.decode(path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return cls()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return cls(dropped=f"cannot be read: {error}")
        except OSError as error:
            return cls(dropped=f"cannot be read: {error.strerror}")
        if changed := document.judged_by.differing(yardstick):
            return cls(dropped=f"was of another {' and '.join(changed)}")
        found: dict[str, Variant] = {}
        gone: list[str] = []
        for each in document.variants:
            if each.record is None or each.record == record_digest(
                path.parent / folder_of(each.name)
            ):
                found[each.name] = each
            else:
                gone.append(each.name)
        return cls(
            variants=found,
            dropped=f"was of other checkpoints: {', '.join(gone)}" if gone else None,
        )


def folder_of(name: str) -> str:
    """The name of a variant's folder."""
    return name.replace(":", "-")


def record_digest(folder: Path) -> str | None:
    """SHA-256 of the file that says how a checkpoint was made; None where there is none."""
    try:
        return hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()
    except OSError:
        return None


def digests_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """Each file's path and SHA-256; of folders those of all that is in them. Raises OSError."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
    ]
    return tuple(f"{file}: {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)
