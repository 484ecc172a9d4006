"""One request on a connection of its own, by clients of every manner."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any

from service.answers import Answer
from service.process import HOST

SMALL_BUFFER = 4096
"""Bytes that the kernel keeps for a client that reads slowly."""


@dataclass(frozen=True)
class Manner:
    """How a client behaves; by default like any other."""

    leaves_after: int | None = None
    """It closes its connection after so many events, or at 0 before it has read anything."""
    pause_s: float = 0.0
    """It waits so long before each of its reads."""
    deadline_s: float | None = None
    """What it asks for in ``x-request-timeout``."""


@dataclass
class Asked:
    """The result of a request."""

    status: int | None
    """None where the client left before the head."""
    answer: Answer
    left: bool = False


async def ask(port: int, body: dict[str, Any] | bytes, manner: Manner = Manner()) -> Asked:
    """Raises OSError, EOFError or ValueError where the server breaks the connection or HTTP."""
    sock = socket.socket()
    sock.setblocking(False)
    if manner.pause_s:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
    try:
        writer.write(_request(body, manner))
        await writer.drain()
        if manner.leaves_after == 0:
            return Asked(None, Answer(), left=True)
        return await _read(reader, manner)
    finally:
        writer.transport.abort()


def _request(body: dict[str, Any] | bytes, manner: Manner) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    deadline = "" if manner.deadline_s is None else f"X-Request-Timeout: {manner.deadline_s}\r\n"
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"{deadline}Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


async def _read(reader: asyncio.StreamReader, manner: Manner) -> Asked:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    asked = Asked(int(lines[0].split(" ", 2)[1]), Answer())
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    if "content-length" in headers:
        asked.answer.take_whole(await reader.readexactly(int(headers["content-length"])))
        return asked
    events = 0
    while True:
        if manner.pause_s:
            await asyncio.sleep(manner.pause_s)
        size = int(await reader.readuntil(b"\r\n"), 16)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return asked
        for event in chunk[:-2].split(b"\n\n"):
            if event:
                asked.answer.take(event)
                events += 1
        if manner.leaves_after is not None and events >= manner.leaves_after:
            asked.left = not asked.answer.done
            return asked
