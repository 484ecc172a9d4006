"""The terminal that a stream writes to, and what may be written to it."""

from __future__ import annotations

import os
import re
import shutil
from typing import Final, TextIO

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_IN_JSON: Final = re.compile(r"[\x7f-\x9f]")
"""Control characters that JSON need not escape; some terminals obey U+009B as they do ESC [."""


def columns(stream: TextIO) -> int:
    """The width of the stream's terminal; where it is none, that of the process's, or 80."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return found or shutil.get_terminal_size().columns


def visible(text: str) -> str:
    """``text`` with control characters as pictures: what a model or a server writes must not steer
    the terminal. Line feeds and tabs stay."""
    return _CONTROLS.sub(_picture, text)


def harmless(text: str, stream: TextIO | None) -> str:
    """``text`` as ``stream`` may have it: :func:`visible` on a terminal, as it is elsewhere;
    the stream is None where a shell has closed it."""
    return visible(text) if stream is not None and stream.isatty() else text


def encodable(text: str, stream: TextIO | None) -> str:
    """:func:`harmless`, with escapes for characters that the stream's encoding has not: a name that
    somebody has given must not keep others from being shown."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return harmless(text, stream).encode(encoding, "backslashreplace").decode(encoding)


def json_for_terminals(text: str) -> str:
    """JSON of the same value that steers no terminal: the control characters that its strings may
    hold as they are, U+007F to U+009F, are escaped."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"
