"""How good a variant's answers are, which a load test does not see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import ConfigError
from penstock.regular_file import read_regular

_MEASURES: Final = {
    "perplexity": ("perplexity", "perplexity"),
    "kl": ("kl_mean", "mean KL divergence, nats"),
}
"""The field of each evaluation, and what it is called; less is better of both."""


@dataclass(frozen=True)
class Quality:
    """A figure of quality. Less is better."""

    value: float
    measure: str = "perplexity"
    """What it is, with its unit."""

    def __str__(self) -> str:
        return f"{self.measure} {self.value:g}"


def read_quality(text: str) -> Quality:
    """A number, which is a perplexity, or a file that ``penstock eval perplexity`` or ``eval kl``
    has written. Raises ConfigError, and OSError of the file."""
    try:
        value = float(text)
    except ValueError:
        return _of_file(Path(text))
    if not 0 < value < float("inf"):
        raise ConfigError(f"--quality {text}: a perplexity is a number above 0")
    return Quality(value)


def _of_file(path: Path) -> Quality:
    try:
        document = msgspec.json.decode(read_regular(path), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--quality {path}: no JSON object: {error}") from error
    field, measure = _MEASURES.get(str(document.get("evaluation")), ("", ""))
    value = document.get(field)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ConfigError(
            f"--quality {path}: not written by 'penstock eval perplexity' or 'eval kl'; name such "
            "a file, or a perplexity"
        )
    return Quality(float(value), measure)
