"""The names of GGUF files: which files are GGUF files, and which are parts of one model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUFFIX: Final = ".gguf"
MAGIC: Final = b"GGUF"
_PART: Final = re.compile(rf"(.+)-(\d{{5}})-of-(\d{{5}}){re.escape(SUFFIX)}")


@dataclass(frozen=True)
class PartName:
    """The name of one of the files that a model is split into, such as
    ``model-00001-of-00003.gguf``."""

    stem: str
    number: int
    """Counted from 1, as names have it."""
    count: int

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """What a file's name says, which may stand behind those of folders; None: no part's."""
        match = _PART.fullmatch(name)
        return None if match is None else cls(match[1], int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}{SUFFIX}"


def is_gguf(path: Path) -> bool:
    """Whether what is named is a GGUF file: by its name, or by how it begins, since stores of
    models (Ollama's, and the hub's cache) name files by what they hold."""
    if path.suffix == SUFFIX:
        return not path.is_dir()
    # Of anything but a file, such as a pipe, reading might never end.
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
