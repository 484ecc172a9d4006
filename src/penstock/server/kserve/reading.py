"""Reading the bodies of clients that do not say what they send, as Triton's own."""

from __future__ import annotations

from typing import Final

from penstock.server.read_body import Reader, reading_also

read_tensors: Final[Reader] = reading_also("application/octet-stream")
