"""Standard input as text, whatever bytes it has."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Iterator
from typing import Final

_UNDECODED: Final = re.compile("[\udc80-\udcff]")
"""A byte that Python could not decode, as it hands these through."""


def is_piped() -> bool:
    """Whether a program or a file is read, rather than a person."""
    return sys.stdin is not None and not sys.stdin.isatty()


def piped_text() -> str:
    """All of standard input; empty where there is none.

    A byte that is no text is replaced with U+FFFD, since a diff of old files has some and is
    worth reading all the same; standard error says how many there were.
    """
    _hand_bytes_through()
    text, count = _UNDECODED.subn("\ufffd", "" if sys.stdin is None else sys.stdin.read())
    if count:
        what = "1 byte" if count == 1 else f"{count:,} bytes"
        encoding = sys.stdin.encoding.upper()
        print(
            f"penstock: {what} of standard input could not be read as {encoding}, and stand as "
            "\\ufffd in the text; convert it with iconv if they matter",
            file=sys.stderr,
        )
    return text


def piped_lines() -> Iterator[bytes]:
    """The lines of standard input in UTF-8, and with the bytes that are no text as they are."""
    _hand_bytes_through()
    for line in sys.stdin or ():
        yield line.encode(errors="surrogateescape")


def text_argument(text: str) -> str:
    """The text of an option, for argparse; refuses bytes that are no text."""
    if _UNDECODED.search(text):
        raise argparse.ArgumentTypeError(f"it is not {sys.getfilesystemencoding().upper()} text")
    return text


def _hand_bytes_through() -> None:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
