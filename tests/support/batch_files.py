"""Input files of batches, and a batch that a store has without a server."""

from __future__ import annotations

import json
import time
from typing import Any

from penstock.server.openai.batches.protocol import Batch, FileObject
from penstock.server.openai.batches.store import BatchStore, Owner

ENDPOINT = "/v1/completions"
OWNER = Owner("key", "someone", 2.0)
"""Whose the batch of :func:`kept` is."""


def line(name: str, url: str = ENDPOINT, **fields: Any) -> dict[str, Any]:
    """A request for a completion, with an id that its prompt repeats."""
    body = {"prompt": f"SAY<<{name}>>", "max_tokens": 30, **fields}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def lines(*given: dict[str, Any]) -> bytes:
    """An input file of these requests."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in given)


def kept(store: BatchStore, data: bytes) -> Batch:
    """Put an input file into the store; returns a batch of it that nobody has begun."""
    now = int(time.time())
    file = FileObject(id="file-in", bytes=len(data), created_at=now, filename="in", purpose="batch")
    store.data(file.id).write_bytes(data)
    store.announce(file, OWNER)
    return Batch(
        id="batch_1",
        endpoint=ENDPOINT,
        input_file_id=file.id,
        completion_window="24h",
        status="validating",
        created_at=now,
        expires_at=now + 100,
    )
