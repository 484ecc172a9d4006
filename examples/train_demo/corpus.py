"""The demo model's corpus: the source of the Python standard library that runs this script.

The split is by file and by a hash of the file's relative path, so every machine and every
Python version holds out the same files. Held-out files are never seen by the tokenizer
trainer or by the optimizer.

    python examples/train_demo/corpus.py build/corpus

writes the files to a folder, as UTF-8, which `penstock train-heads --data` reads and splits alike.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
import tokenize
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_PER_MILLE = 30

# Generated tables and deliberately malformed sources: bytes without Python in them.
SKIPPED_PARTS = frozenset({"site-packages", "__pycache__", "bad_coding", "badsyntax"})
SKIPPED_FOLDERS = ("encodings/", "lib2to3/tests/data/", "test/encoded_modules/", "pydoc_data/")


@dataclass(frozen=True)
class Document:
    """One source file: its path relative to the library's folder, and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:4], "little") % 1000 < HELD_OUT_PER_MILLE


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def read_documents(root: Path | None = None) -> list[Document]:
    """Every readable ``.py`` file below ``root`` (default: this Python's library), by path."""
    root = root or standard_library()
    documents = []
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root).as_posix()
        if SKIPPED_PARTS & set(file.parts) or relative.startswith(SKIPPED_FOLDERS):
            continue
        try:
            with tokenize.open(file) as stream:
                text = stream.read()
        except (SyntaxError, UnicodeDecodeError):
            continue  # test data that is not valid source on purpose
        if text.strip():
            documents.append(Document(relative, text))
    if not documents:
        raise SystemExit(f"no Python sources below {root}; pass the folder of a standard library")
    return documents


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """``(training, held_out)``."""
    training = [d for d in documents if not d.held_out]
    return training, [d for d in documents if d.held_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder to write the files to")
    parser.add_argument("--library", type=Path, help="a standard library other than this Python's")
    arguments = parser.parse_args()
    documents = read_documents(arguments.library)
    for document in documents:
        file = arguments.out / document.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(document.text, encoding="utf-8")
    print(f"{len(documents)} files in {arguments.out}")


if __name__ == "__main__":
    main()
