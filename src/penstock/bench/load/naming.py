"""Which name each result has, and which quality belongs to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.bench.load.quality import Quality, read_quality
from penstock.bench.load.reading import read_report
from penstock.bench.load.result import Result
from penstock.errors import ConfigError

_LONGEST: Final = 60


def read_results(words: Sequence[str], qualities: Sequence[str]) -> list[Result]:
    """The results of ``FILE`` or ``NAME=FILE`` each, with the qualities of ``NAME=VALUE``.

    Raises ConfigError for names that are not unique or unknown, and for what is no result; OSError
    of files.
    """
    paths = [_named(text) for text in words]
    names = [name for name, _ in paths]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two results are called {name!r}; name them: first={paths[0][1]} ..."
            )
        if len(name) > _LONGEST or not name.strip() or not name.isprintable():
            raise ConfigError(f"a result's name has 1 to {_LONGEST} letters: {name[:80]!r}")
    known = _qualities(qualities, names)
    return [Result(name, read_report(path), known.get(name)) for name, path in paths]


def _named(text: str) -> tuple[str, Path]:
    """A name and a file. A file that has the whole text as its name is that."""
    path = Path(text)
    name, equals, rest = text.partition("=")
    if equals and "/" not in name and not path.exists():
        return name, Path(rest)
    return path.stem, path


def _qualities(words: Sequence[str], names: Sequence[str]) -> Mapping[str, Quality]:
    found = {}
    for text in words:
        name, equals, value = text.partition("=")
        if not equals or name not in names:
            raise ConfigError(
                f"--quality {text}: write NAME=PERPLEXITY or NAME=FILE; names are "
                f"{', '.join(names)}"
            )
        found[name] = read_quality(value)
    return found
