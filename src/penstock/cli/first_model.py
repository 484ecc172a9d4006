"""The model that ``penstock chat`` offers when no model is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from penstock.cli.parser import UsageError
from penstock.errors import ModelError, first_line

FIRST_MODEL: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""A model for chats that is small, loads in seconds, and asks for no consent. The demo model writes
code, and was not made for chats."""


def first_model(agreed: bool) -> str:
    """The hub id of a small model for chats, downloaded before or with the person's consent.

    ``agreed``: the person has consented beforehand. Raises UsageError where nobody can be asked or
    the answer is no, and ModelError where the hub cannot be reached.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    from penstock.weights.hub_size import download_bytes, is_downloaded

    if is_downloaded(FIRST_MODEL):
        return FIRST_MODEL
    asks = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if not agreed and not asks:
        raise UsageError(
            f"no model is named: name a folder, a GGUF file or a hub id, or let {FIRST_MODEL} be "
            "downloaded with --yes"
        )
    try:
        size = download_bytes(FIRST_MODEL)
    except ModelError as error:
        cause = first_line(error.__cause__ or error)
        raise ModelError(
            f"no model is named, and {FIRST_MODEL} cannot be downloaded, since the hub cannot be "
            f"reached ({cause}). Name a model that is on this machine, a folder or a GGUF file: "
            f"`penstock chat PATH`; or where there is a connection, `hf download {FIRST_MODEL} "
            "--local-dir SmolLM2`, and here `penstock chat SmolLM2`"
        ) from error
    what = f"{FIRST_MODEL} ({size / 1e6:,.0f} MB)"
    kept = Path(HF_HUB_CACHE)
    if not agreed:
        print(f"No model is named. {what} is small, and made for chats.", file=sys.stderr)
        print(f"Download it? It is kept in {kept}. [Y/n] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
            raise UsageError("no model is named: name a folder, a GGUF file or a hub id")
    print(f"penstock: downloading {what} to {kept}", file=sys.stderr)
    return FIRST_MODEL
