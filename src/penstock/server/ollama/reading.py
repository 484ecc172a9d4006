"""Reading the bodies of clients that do not say what they send: some libraries give no type, and
curl, as Ollama's own documents have it, calls them forms."""

from __future__ import annotations

from typing import Final

from penstock.server.read_body import Reader, reading_also

read_undeclared: Final[Reader] = reading_also("application/x-www-form-urlencoded")
