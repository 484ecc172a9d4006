"""Frames between a front end and a worker: a little-endian uint32 byte count, then msgpack."""

from __future__ import annotations

import socket
import struct
from typing import Any, Generic, TypeVar

import msgspec

from penstock.errors import RequestError
from penstock.sandbox.jobs import Answer, Job, Task

HEADER = struct.Struct("<I")
_PIECE = 1 << 20

Message = TypeVar("Message")


def encode_job(job: Job) -> bytes:
    """The frame that asks for a job. Raises RequestError for text that is not Unicode."""
    try:
        return encode(Task(job.cpu_s, job))
    except UnicodeEncodeError:
        raise RequestError(
            f"the {job.param} holds a lone surrogate; send valid UTF-8", job.param
        ) from None


def encode(message: Task | Answer) -> bytes:
    """One whole frame. Raises UnicodeEncodeError for lone surrogates."""
    buffer = bytearray(HEADER.size)
    msgspec.msgpack.Encoder().encode_into(message, buffer, HEADER.size)
    HEADER.pack_into(buffer, 0, len(buffer) - HEADER.size)
    return bytes(buffer)


class FrameBuffer(Generic[Message]):
    """Turns received bytes, in pieces of any size, into messages of type ``kind``."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Message | None:
        """The message that ``data`` completes, if it does: there is one at a time.

        Raises msgspec.DecodeError.
        """
        self._buffer += data
        if len(self._buffer) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(self._buffer)
        if len(self._buffer) < HEADER.size + size:
            return None
        message = self._decoder.decode(memoryview(self._buffer)[HEADER.size :])
        self._buffer = bytearray()
        return message

    def receive(self, sock: socket.socket) -> Message | None:
        """The next message of a blocking socket; None at the end of the stream."""
        while data := sock.recv(_PIECE):
            message = self.feed(data)
            if message is not None:
                return message
        return None
