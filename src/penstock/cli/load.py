"""Loads a model for a command, and says how that goes on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.api import LLM
from penstock.cli.load_progress import LoadProgress
from penstock.terminal import harmless


class _Lines(logging.Handler):
    """Gives the text of warnings to a callback."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


@contextmanager
def _warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Pass what Penstock warns of within the block to ``say``, in place of standard error."""
    log, lines = logging.getLogger("penstock"), _Lines(say)
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)


def loaded(options: dict[str, Any], chat_template: Path | None, quiet: bool) -> LLM:
    """The LLM of these engine options. Unless ``quiet``, standard error shows how loading goes on,
    and what there is to note."""
    with LoadProgress(sys.stderr, enabled=not quiet) as progress, _warnings_to(progress.print):
        llm = LLM(
            **options, chat_template=chat_template, load_progress=progress, require_tokenizer=True
        )
    if not quiet:
        for note in llm.config.notes:
            print(harmless(f"penstock: note: {note}", sys.stderr), file=sys.stderr)
    return llm
