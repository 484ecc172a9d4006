"""One piece of hostile input for a server that runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """Bytes for a connection of their own. No answer to them may be a 5xx."""

    name: str
    data: bytes
    closes_early: bool = False
    """The client stops sending after ``data``, which promises more."""


def posted(name: str, path: str, body: bytes | dict[str, Any]) -> Case:
    """A POST whose head is faultless, whatever its body is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return Case(name, head.encode() + data)
