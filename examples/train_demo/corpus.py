"""The demo model's corpus: the source of the Python standard library that runs this script, and of
packages beside it.

The split is by file and by a hash of the file's relative path, so every machine and every
Python version holds out the same files. Held-out files are never seen by the tokenizer
trainer or by the optimizer, nor are files of packages that repeat them.

    python examples/train_demo/corpus.py build/corpus --packages build/packages --share 0.035

writes the files to a folder, as UTF-8, which `penstock train-heads --data` reads and splits alike,
and a share of those of packages to a folder in it.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_PER_MILLE = 30

# Generated tables and deliberately malformed sources: bytes without Python in them.
SKIPPED_PARTS = frozenset({"site-packages", "__pycache__", "bad_coding", "badsyntax"})
SKIPPED_FOLDERS = ("encodings/", "lib2to3/tests/data/", "test/encoded_modules/", "pydoc_data/")

# Bytes of a file of a package, and of its mean line: longer ones are tables and generated parsers.
LONGEST_FILE = 200_000
LONGEST_LINE = 70
# So many lines in a row that a held-out file has, too, make a file a copy of it.
REPEATED_LINES = 5


@dataclass(frozen=True)
class Document:
    """One source file: its path relative to the library's folder, and its text."""

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        return self.place < HELD_OUT_PER_MILLE

    @property
    def place(self) -> int:
        """A number from 0 to 999 that its path alone decides."""
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:4], "little") % 1000

    def write(self, folder: Path) -> None:
        """Write the text below ``folder``, as UTF-8."""
        file = folder / self.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text, encoding="utf-8")


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def read_documents(root: Path | None = None) -> list[Document]:
    """Every readable ``.py`` file below ``root`` (default: this Python's library), by path."""
    root = root or standard_library()
    documents = [d for d in _below(root) if not d.path.startswith(SKIPPED_FOLDERS)]
    if not documents:
        raise SystemExit(f"no Python sources below {root}; pass the folder of a standard library")
    return documents


def read_packages(folder: Path, held_out: Sequence[Document]) -> list[Document]:
    """The ``.py`` files of the packages in ``folder`` to train on, by path, each text once.

    Left out are tables, and files that share ``REPEATED_LINES`` lines in a row with one of
    ``held_out``: packages carry copies of modules of the library.
    """
    known = {lines for document in held_out for lines in _stretches(document.text)}
    documents, texts = [], set()
    for document in _below(folder):
        size = len(document.text)
        if size > LONGEST_FILE or size > LONGEST_LINE * (document.text.count("\n") + 1):
            continue
        if document.text in texts or not known.isdisjoint(_stretches(document.text)):
            continue
        texts.add(document.text)
        documents.append(document)
    return documents


def _below(root: Path) -> Iterator[Document]:
    """The readable files of a folder, without its site-packages."""
    for file in sorted(root.rglob("*.py")):
        if SKIPPED_PARTS & set(file.relative_to(root).parts):
            continue
        try:
            with tokenize.open(file) as stream:
                text = stream.read()
        except (SyntaxError, UnicodeDecodeError):
            continue  # test data that is not valid source on purpose
        if text.strip():
            yield Document(file.relative_to(root).as_posix(), text)


def _stretches(text: str) -> Iterator[int]:
    """Hashes of all runs of ``REPEATED_LINES`` lines that say something, without indentation."""
    lines = [s for line in text.split("\n") if len(s := line.strip()) > 8 and s[0] != "#"]
    for i in range(len(lines) - REPEATED_LINES + 1):
        yield hash("\n".join(lines[i : i + REPEATED_LINES]))


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """``(training, held_out)``."""
    training = [d for d in documents if not d.held_out]
    return training, [d for d in documents if d.held_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path, help="folder to write the files to")
    parser.add_argument("--library", type=Path, help="a standard library other than this Python's")
    parser.add_argument("--packages", type=Path, help="a folder of packages, as of train.py")
    parser.add_argument("--share", type=float, default=1.0, help="of the packages' files to write")
    arguments = parser.parse_args()
    documents = read_documents(arguments.library)
    for document in documents:
        document.write(arguments.out)
    written = len(documents)
    if arguments.packages:
        for document in read_packages(arguments.packages, split(documents)[1]):
            if document.place < 1000 * arguments.share:
                document.write(arguments.out / "packages")
                written += 1
    print(f"{written} files in {arguments.out}")


if __name__ == "__main__":
    main()
