"""Loads a model for a command, and says how that goes on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from penstock.api import LLM
from penstock.cli.load_progress import LoadProgress


def loaded(options: dict[str, Any], chat_template: Path | None, quiet: bool) -> LLM:
    """The LLM of these engine options. Unless ``quiet``, standard error shows how loading goes on,
    and what there is to note."""
    with LoadProgress(sys.stderr, enabled=not quiet) as progress:
        llm = LLM(
            **options, chat_template=chat_template, load_progress=progress, require_tokenizer=True
        )
    if not quiet:
        for note in llm.config.notes:
            print(f"penstock: note: {note}", file=sys.stderr)
    return llm
