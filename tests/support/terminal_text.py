"""A stream that says it is a terminal, and keeps what is written."""

from __future__ import annotations

import io


class TerminalText(io.StringIO):
    def isatty(self) -> bool:
        return True
