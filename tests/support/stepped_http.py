"""HTTP of a server whose answers are steps: bytes, waits, and the end of the connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

Step = bytes | float | Callable[[], bool]
"""Bytes to send, seconds to wait, or a condition to wait for; 0 closes the connection."""


@dataclass
class Request:
    head: str
    """As it came."""
    method: str
    path: str
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path, _ = first.split()
        fields = (line.partition(": ") for line in lines if line)
        headers = {name.lower(): value for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return cls(head, method, path, headers, body)


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[Request], Awaitable[bool]],
) -> None:
    """Answer the requests of a connection until ``answer`` says that it was the last, or the client
    leaves."""
    gone = (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError)
    with contextlib.suppress(*gone):
        while await answer(await Request.read(reader)):
            pass
    writer.close()


async def take(steps: Sequence[Step], writer: asyncio.StreamWriter) -> bool:
    """Take the steps; whether the connection stays."""
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif callable(step):
            while not step():
                await asyncio.sleep(0.001)
        elif step == 0:
            return False
        else:
            await asyncio.sleep(step)
    return True


def chunk(data: bytes) -> bytes:
    """``data`` as HTTP's chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(status: str, body: bytes, *headers: str) -> bytes:
    """A whole answer that is no stream."""
    head = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body
