"""The blocks of code in a Markdown file, and which of them are to be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LANGUAGES = ("sh", "bash", "python")
"""Those of blocks that are run. Other blocks show forms and outputs."""
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_CONTINUED = re.compile(r"(?:[^\n]*\\\n)*[^\n]+")


@dataclass(frozen=True)
class Block:
    """A block, and where it stands. ``not_run`` is the reason that the comment before it gives, as
    in ``<!-- not run: needs a GPU -->``."""

    path: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def commands(self) -> list[str]:
        """The commands of a shell's block, with their continuations."""
        return _CONTINUED.findall(self.text)

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def runnable_blocks(path: Path) -> list[Block]:
    """The blocks of ``LANGUAGES`` in a file, in order."""
    text = path.read_text()
    return [
        Block(
            path,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in LANGUAGES
    ]
