"""Which files are GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUFFIX: Final = ".gguf"
MAGIC: Final = b"GGUF"


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
