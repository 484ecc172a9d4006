"""Frames between a front end and a worker: a little-endian uint32 byte count, then msgpack."""

from __future__ import annotations

import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import RequestError
from penstock.sandbox.jobs import Job, Task, Told

HEADER = struct.Struct("<I")
_PIECE = 1 << 20

Message = TypeVar("Message")


def encode_job(job: Job) -> bytes:
    """Encode a job as a frame. Raises RequestError for text that is not valid Unicode."""
    try:
        return encode(Task(job.cpu_s, job))
    except UnicodeEncodeError:
        raise RequestError(
            f"the {job.param} holds a lone surrogate; send valid UTF-8", job.param
        ) from None


def encode(message: Task | Told) -> bytes:
    """Encode one message as a frame. Raises UnicodeEncodeError for lone surrogates."""
    buffer = bytearray(HEADER.size)
    msgspec.msgpack.Encoder().encode_into(message, buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size)
    return bytes(buffer)


class FrameBuffer(Generic[Message]):
    """Decodes messages of type ``kind`` from received bytes, in pieces of any size."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes. Raises msgspec.DecodeError."""
        self._buffer += data
        complete: list[Message] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= HEADER.size:
                (size,) = HEADER.unpack_from(view, start)
                body = start + HEADER.size
                if len(view) - body < size:
                    break
                complete.append(self._decoder.decode(view[body : body + size]))
                start = body + size
        del self._buffer[:start]
        return complete

    def receive(self, sock: socket.socket) -> list[Message]:
        """Return the next messages from a blocking socket; none at the end of the stream."""
        while data := sock.recv(_PIECE):
            messages = self.feed(data)
            if messages:
                return messages
        return []
